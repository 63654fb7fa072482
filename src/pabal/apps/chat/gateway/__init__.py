"""The gateway: REST, Socket.IO and the web page, in front of the topics and the ledger."""

"""The gateway of the chat: REST, Socket.IO and the page, in front of topics and a ledger."""

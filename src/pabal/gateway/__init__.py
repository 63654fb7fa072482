"""The gateway: a store over HTTP, for programs that speak SQS. It stands on `pabal.aio` alone and keeps no state."""

"""Chat: gateways append messages to a topic, workers store each message once, and gateways send it to the members."""

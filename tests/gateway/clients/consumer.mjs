// sqs-consumer: polls, deletes what was handled, and lets what failed come again.
import { CreateQueueCommand, SQSClient, SendMessageBatchCommand } from "@aws-sdk/client-sqs";
import { Consumer } from "sqs-consumer";

const sqs = new SQSClient({
  endpoint: process.argv[2], region: "eu-west-1", credentials: { accessKeyId: "any", secretAccessKey: "any" },
});
const { QueueUrl: queueUrl } = await sqs.send(new CreateQueueCommand({ QueueName: "consumed" }));
const handled = [];
let failed = 0;
const consumer = Consumer.create({
  queueUrl, sqs, batchSize: 10, waitTimeSeconds: 5, terminateVisibilityTimeout: true, heartbeatInterval: 5,
  visibilityTimeout: 30,
  handleMessage: async (message) => {
    if (message.Body === "13" && failed++ === 0) throw new Error("once");
    handled.push(message.Body);
    if (handled.length === 25) consumer.stop();
    return message;
  },
});
consumer.on("error", (error) => console.error("error", error));
consumer.on("processing_error", () => {});
const stopped = new Promise((resolve) => consumer.on("stopped", resolve));
consumer.start();
for (let start = 0; start < 25; start += 5) {
  const Entries = [0, 1, 2, 3, 4].map((n) => ({ Id: `${n}`, MessageBody: `${start + n}` }));
  await sqs.send(new SendMessageBatchCommand({ QueueUrl: queueUrl, Entries }));
}
await stopped;
console.log(JSON.stringify({ handled: handled.map(Number).sort((a, b) => a - b), failed }));

// The official JavaScript SDK, which compares the checksums of what it sends and receives.
import {
  CreateQueueCommand, DeleteMessageBatchCommand, DeleteMessageCommand, GetQueueAttributesCommand, ListQueuesCommand,
  ReceiveMessageCommand, SQSClient, SendMessageBatchCommand, SendMessageCommand,
} from "@aws-sdk/client-sqs";

const sqs = new SQSClient({
  endpoint: process.argv[2], region: "eu-west-1", credentials: { accessKeyId: "any", secretAccessKey: "any" },
});
const { QueueUrl } = await sqs.send(new CreateQueueCommand({
  QueueName: "javascript.fifo", Attributes: { FifoQueue: "true", ContentBasedDeduplication: "true" },
}));
const MessageAttributes = {
  text: { DataType: "String", StringValue: "값" },
  number: { DataType: "Number.int", StringValue: "42" },
  bytes: { DataType: "Binary", BinaryValue: new Uint8Array([0, 255]) },
};
await sqs.send(new SendMessageCommand({ QueueUrl, MessageBody: "first ✓", MessageGroupId: "g", MessageAttributes }));
const Entries = [1, 2, 3].map((n) => ({ Id: `${n}`, MessageBody: `${n}`, MessageGroupId: "g" }));
await sqs.send(new SendMessageBatchCommand({ QueueUrl, Entries }));
const { Messages } = await sqs.send(new ReceiveMessageCommand({
  QueueUrl, MaxNumberOfMessages: 10, WaitTimeSeconds: 20, MessageAttributeNames: ["All"],
  MessageSystemAttributeNames: ["All"],
}));
await sqs.send(new DeleteMessageCommand({ QueueUrl, ReceiptHandle: Messages[0].ReceiptHandle }));
await sqs.send(new DeleteMessageBatchCommand({
  QueueUrl, Entries: Messages.slice(1).map(({ ReceiptHandle }, n) => ({ Id: `${n}`, ReceiptHandle })),
}));
const { Attributes } = await sqs.send(new GetQueueAttributesCommand({ QueueUrl, AttributeNames: ["All"] }));
const { QueueUrls } = await sqs.send(new ListQueuesCommand({ QueueNamePrefix: "javascript" }));
let refused;
try {
  await sqs.send(new SendMessageCommand({ QueueUrl: `${QueueUrl}x`, MessageBody: "x" }));
} catch (error) {
  refused = error.name;
}
console.log(JSON.stringify({
  bodies: Messages.map(({ Body }) => Body),
  bytes: Array.from(Messages[0].MessageAttributes.bytes.BinaryValue),
  rising: Messages.every(({ Attributes: { SequenceNumber: s } }, n) => n === 0 || s > Messages[n - 1].Attributes.SequenceNumber),
  left: Attributes.ApproximateNumberOfMessages + Attributes.ApproximateNumberOfMessagesNotVisible,
  listed: QueueUrls.length,
  refused,
}));

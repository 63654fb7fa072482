import java.net.URI;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.awssdk.core.SdkBytes;
import software.amazon.awssdk.http.urlconnection.UrlConnectionHttpClient;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.sqs.SqsClient;
import software.amazon.awssdk.services.sqs.model.*;

/** The Java SDK, which compares the checksums of bodies and attributes. */
public class Client {
    public static void main(String[] arguments) {
        try (SqsClient sqs = SqsClient.builder()
                .endpointOverride(URI.create(arguments[0]))
                .region(Region.EU_WEST_1)
                .credentialsProvider(StaticCredentialsProvider.create(AwsBasicCredentials.create("any", "any")))
                .httpClient(UrlConnectionHttpClient.create())
                .build()) {
            String url = sqs.createQueue(make -> make.queueName("java.fifo").attributesWithStrings(
                    Map.of("FifoQueue", "true", "ContentBasedDeduplication", "true"))).queueUrl();
            Map<String, MessageAttributeValue> attributes = Map.of(
                    "text", MessageAttributeValue.builder().dataType("String").stringValue("값").build(),
                    "number", MessageAttributeValue.builder().dataType("Number.int").stringValue("42").build(),
                    "bytes", MessageAttributeValue.builder().dataType("Binary")
                            .binaryValue(SdkBytes.fromByteArray(new byte[] {0, -1})).build());
            SendMessageResponse sent = sqs.sendMessage(send -> send.queueUrl(url).messageBody("first ✓")
                    .messageGroupId("g").messageAttributes(attributes));
            sqs.sendMessageBatch(send -> send.queueUrl(url).entries(
                    SendMessageBatchRequestEntry.builder().id("a").messageBody("1").messageGroupId("g").build(),
                    SendMessageBatchRequestEntry.builder().id("b").messageBody("2").messageGroupId("g").build()));
            List<Message> found = sqs.receiveMessage(receive -> receive.queueUrl(url).maxNumberOfMessages(10)
                    .waitTimeSeconds(20).messageAttributeNames("All")).messages();
            for (Message message : found) {
                sqs.changeMessageVisibility(change -> change.queueUrl(url).receiptHandle(message.receiptHandle())
                        .visibilityTimeout(60));
                sqs.deleteMessage(delete -> delete.queueUrl(url).receiptHandle(message.receiptHandle()));
            }
            String refused = "";
            try {
                sqs.getQueueUrl(get -> get.queueName("nowhere"));
            } catch (QueueDoesNotExistException exc) {
                refused = exc.awsErrorDetails().errorCode();
            }
            System.out.println(found.stream().map(Message::body).collect(Collectors.joining(",")));
            System.out.println(found.get(0).messageAttributes().get("bytes").binaryValue().asByteArray().length);
            System.out.println(sent.sequenceNumber().length() + " " + refused);
        }
    }
}

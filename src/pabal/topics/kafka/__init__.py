"""Topics on Apache Kafka, for many machines."""

from pabal.errors import ExtraMissing

try:
    import confluent_kafka as _client  # noqa: F401  whether it is there
except ImportError as exc:
    raise ExtraMissing("Kafka needs confluent-kafka: pip install 'pabal[kafka]'") from exc

from pabal.topics.kafka.driver import KafkaTopics
from pabal.topics.kafka.settings import KafkaSettings

__all__ = ["KafkaSettings", "KafkaTopics"]

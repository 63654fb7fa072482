"""Topics on Apache Kafka, for many machines."""

from pabal.errors import ExtraMissing

try:
    import confluent_kafka as _client  # noqa: F401  whether it is there
except ImportError as exc:
    raise ExtraMissing("Kafka needs confluent-kafka: install Pabal with its extra 'kafka' (README, Extras)") from exc

from pabal.topic_stores.kafka.settings import KafkaSettings, settings_of
from pabal.topic_stores.kafka.store import KafkaTopics

__all__ = ["KafkaSettings", "KafkaTopics", "settings_of"]

"""The consumer groups of a Kafka cluster, seen from outside: what they have committed, and where they go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from pabal.topic import Bounds, Share
from pabal.topics.kafka.settings import KafkaSettings
from pabal.topics.kafka.translating import busy_or, kafka_error, translated


class Groups:
    def __init__(self, settings: KafkaSettings, admin: AdminClient) -> None:
        self._servers, self._timeout = settings.servers, settings.timeout
        self._admin = admin

    def shares(self, topic: str, bounds: Sequence[Bounds]) -> dict[str, list[Share]]:
        """Ask for every group of the cluster and keep those that have to do with this topic."""
        with translated("listing the groups", self._servers):
            listed = self._admin.list_consumer_groups(request_timeout=self._timeout).result()
            names = sorted(group.group_id for group in listed.valid)
            return {name: shares for name in names if (shares := self._of(name, topic, bounds))}

    def reset(self, topic: str, group: str, offsets: Mapping[int, int]) -> None:
        """Commit in the group's stead, which the coordinator allows only while nobody is in it."""
        wanted = [TopicPartition(topic, number, offset) for number, offset in offsets.items()]
        request = [ConsumerGroupTopicPartitions(group, wanted)]
        try:
            [future] = self._admin.alter_consumer_group_offsets(request, request_timeout=self._timeout).values()
            for answer in future.result().topic_partitions:
                if answer.error is not None:
                    raise KafkaException(answer.error)
        except KafkaException as exc:
            raise busy_or(kafka_error(exc), group, self._servers) from exc

    def _of(self, group: str, topic: str, bounds: Sequence[Bounds]) -> list[Share]:
        committed, owners = self._committed(group, topic, len(bounds)), self._owners(group, topic)
        if not owners and all(offset < 0 for offset in committed.values()):
            return []
        return [
            Share(
                number,
                max(0, committed.get(number, 0)),
                end - max(first, committed.get(number, 0)),
                owners.get(number, ""),
            )
            for number, (first, end) in enumerate(bounds)
        ]

    def _committed(self, group: str, topic: str, partitions: int) -> dict[int, int]:
        wanted = [TopicPartition(topic, number) for number in range(partitions)]
        request = [ConsumerGroupTopicPartitions(group, wanted)]
        [future] = self._admin.list_consumer_group_offsets(request, request_timeout=self._timeout).values()
        return {found.partition: found.offset for found in future.result().topic_partitions}

    def _owners(self, group: str, topic: str) -> dict[int, str]:
        [future] = self._admin.describe_consumer_groups([group], request_timeout=self._timeout).values()
        return {
            found.partition: member.member_id
            for member in future.result().members
            for found in member.assignment.topic_partitions
            if found.topic == topic
        }

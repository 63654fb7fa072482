"""The topics of a Kafka cluster."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # unsaid exports
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from pabal import jsontext
from pabal.errors import InvalidInput, NameTaken, StoreClosed, StoreFailed, TopicUnknown
from pabal.names import check_name
from pabal.topic_store import (
    DEFAULT_PATIENCE,
    DEFAULT_SESSION,
    NO_SETTINGS,
    Bounds,
    NewRecord,
    Position,
    Record,
    Shape,
    Share,
    check_partition,
    check_records,
    check_shape,
    check_topic,
    joined,
)
from pabal.topic_stores.kafka.errors import busy_or, is_fenced, kafka_error, translated
from pabal.topic_stores.kafka.member import KafkaMember
from pabal.topic_stores.kafka.producer import RecordProducer
from pabal.topic_stores.kafka.reader import SETTINGS_TOPIC, Reader, SettingsReader, proposal_key
from pabal.topic_stores.kafka.settings import LARGEST_BATCH, KafkaSettings, limits_of


class KafkaTopics:
    """The topics of one cluster. Threads may share it; clients of the cluster are made when first needed."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        try:
            self._admin = AdminClient(settings.common())
        except KafkaException as exc:
            raise InvalidInput(f"{settings.hide(kafka_error(exc).str()).strip()} in the settings of Kafka") from None
        self._producer = RecordProducer(settings)
        self._reader = Reader(settings)
        self._settings_reader = SettingsReader(self._reader)
        self._groups = Groups(settings, self._admin)
        self._partitions: dict[str, int] = {}
        self._closed = False

    # Topics

    def create(self, topic: str, shape: Shape, settings: Mapping[str, Any] = NO_SETTINGS) -> bool:
        """Make the topic with as many replicas as the settings say."""
        check_topic(topic)
        partitions, max_age, max_bytes = check_shape(shape)
        config = limits_of(max_age, max_bytes) | {
            "min.insync.replicas": str(self._settings.min_insync),
            "max.message.bytes": str(LARGEST_BATCH),
        }
        made = self._create(topic, partitions, config)
        if not made and (found := self._count(topic)) != partitions:
            raise NameTaken(f"topic {topic} is there with {found} partitions, not {partitions}")
        if settings:
            self._propose(topic, settings)
        return made

    def topics(self) -> list[str]:
        """Return every topic except Kafka's own and the one for settings."""
        self._require_open()
        with translated("listing the topics", self._settings.servers):
            names = self._admin.list_topics(timeout=self._settings.timeout).topics
        return sorted(name for name in names if not name.startswith("__") and name != SETTINGS_TOPIC)

    def shape(self, topic: str) -> Shape:
        """Ask the cluster for partitions and retention."""
        partitions = self._count(topic)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        with translated(f"looking at {topic}", self._settings.servers):
            [future] = self._admin.describe_configs([resource], request_timeout=self._settings.timeout).values()
            found = future.result()
        age, size = int(found["retention.ms"].value), int(found["retention.bytes"].value)
        return Shape(partitions, max(0.0, age / 1000), max(0, size))

    def retain(self, topic: str, *, max_age: float | None = None, max_bytes: int | None = None) -> None:
        """Change the retention on the servers."""
        check_shape(Shape(self._count(topic), max_age or 0.0, max_bytes or 0))
        entries = [
            ConfigEntry(name, text, incremental_operation=AlterConfigOpType.SET)
            for name, text in limits_of(max_age, max_bytes).items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
        if entries:
            with translated(f"changing what {topic} keeps", self._settings.servers):
                timeout = self._settings.timeout
                [future] = self._admin.incremental_alter_configs([resource], request_timeout=timeout).values()
                future.result()

    def settings(self, topic: str) -> Mapping[str, Any]:
        """Return the settings of the topic."""
        self._count(topic)
        try:
            self._count(SETTINGS_TOPIC)
        except TopicUnknown:
            return {}
        return self._settings_reader.of(topic)

    def configure(self, topic: str, settings: Mapping[str, Any]) -> None:
        """Keep the settings in a compacted topic of their own."""
        self._count(topic)
        self._keep(topic, settings)

    # Records

    def append(self, topic: str, records: Sequence[NewRecord]) -> list[Position]:
        """Send the records; those of one partition keep their order."""
        count = self._count(topic)
        check_records(records)
        for record in records:
            if record.partition is not None:
                check_partition(topic, record.partition, count)
        return self._producer.append(topic, records) if records else []

    def read(self, topic: str, partition: int, offset: int, limit: int) -> list[Record]:
        """Return records of one partition."""
        check_partition(topic, partition, self._count(topic))
        return self._reader.page(topic, partition, max(0, offset), limit)

    def bounds(self, topic: str) -> list[Bounds]:
        """Return the bounds of every partition."""
        return self._reader.bounds(topic, self._count(topic))

    def offsets_at(self, topic: str, at: float) -> list[int]:
        """Return for every partition the first offset from that instant on."""
        found = self._reader.offsets_at(topic, self._count(topic), at)
        if min(found) >= 0:
            return found
        return [bounds.next if offset < 0 else offset for offset, bounds in zip(found, self.bounds(topic), strict=True)]

    def trim(self, topic: str) -> int:
        """Do nothing: the servers apply the retention."""
        self._count(topic)
        return 0

    # Groups

    def join(
        self, topic: str, group: str, *, session: float = DEFAULT_SESSION, patience: float = DEFAULT_PATIENCE
    ) -> KafkaMember:
        """Become a member of the group."""
        self._count(topic)
        return KafkaMember(self._settings, topic, check_name(group, "group"), session=session, patience=patience)

    def groups(self, topic: str) -> dict[str, list[Share]]:
        """Return every group that reads this topic."""
        return self._groups.shares(topic, self.bounds(topic))

    def reset(self, topic: str, group: str, offsets: Mapping[int, int]) -> None:
        """Let the group go on from these offsets."""
        count = self._count(topic)
        for number in offsets:
            check_partition(topic, number, count)
        self._groups.reset(topic, check_name(group, "group"), offsets)

    # State of the store

    def facts(self) -> Mapping[str, str]:
        """Return the place, the replication, and how readers are woken."""
        return {
            "place": f"Kafka at {self._settings.servers}",
            "replication": f"{self._settings.replication}, {self._settings.min_insync} in sync",
            "woken by": "the server",
        }

    def close(self) -> None:
        """Send pending records and close the connections."""
        self._closed = True
        self._producer.close()
        self._reader.close()

    def _propose(self, topic: str, settings: Mapping[str, Any]) -> None:
        """Propose settings for the topic; of concurrent proposals the first one in the log counts."""
        carried = self.settings(topic)
        if joined(topic, carried, settings) != carried:
            self._keep(proposal_key(topic), settings)
            joined(topic, self.settings(topic), settings)

    def _keep(self, key: str, settings: Mapping[str, Any]) -> None:
        self._create(SETTINGS_TOPIC, 1, {"cleanup.policy": "compact"})
        self._producer.append(SETTINGS_TOPIC, [NewRecord(jsontext.encode(dict(settings)), key=key)])

    def _require_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"the topics of Kafka at {self._settings.servers} were closed")

    def _create(self, topic: str, partitions: int, config: dict[str, str]) -> bool:
        self._require_open()
        wanted = NewTopic(topic, partitions, self._settings.replication, config=config)
        with translated(f"making {topic}", self._settings.servers):
            made = self._create_when_there_are_brokers(wanted)
            self._wait_for_leaders(topic)
        return made

    def _create_when_there_are_brokers(self, wanted: NewTopic) -> bool:
        timeout = self._settings.timeout
        deadline = time.monotonic() + timeout
        while True:
            [future] = self._admin.create_topics([wanted], operation_timeout=timeout, request_timeout=timeout).values()
            try:
                future.result()
            except KafkaException as exc:
                error = kafka_error(exc)
                if error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                    return False
                if not is_fenced(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
            else:
                return True

    def _wait_for_leaders(self, topic: str) -> None:
        """Wait until the brokers know the topic: the controller makes it before they know it."""
        deadline = time.monotonic() + self._settings.timeout
        while time.monotonic() < deadline:
            found = self._admin.list_topics(topic, timeout=self._settings.timeout).topics[topic]
            if found.partitions and all(part.leader >= 0 for part in found.partitions.values()):
                return
            time.sleep(0.02)
        raise StoreFailed(f"topic {topic} was made but its partitions got no leader in {self._settings.timeout:g} s")

    def _count(self, topic: str) -> int:
        """Return the number of partitions; asked for once and then cached."""
        self._require_open()
        count = self._partitions.get(topic)
        if count is None:
            check_topic(topic)
            with translated(f"looking for {topic}", self._settings.servers):
                found = self._admin.list_topics(topic, timeout=self._settings.timeout).topics[topic]
                if found.error is not None:
                    raise KafkaException(found.error)
            count = self._partitions[topic] = len(found.partitions)
        return count


class Groups:
    """The consumer groups of a cluster, seen from outside."""

    def __init__(self, settings: KafkaSettings, admin: AdminClient) -> None:
        self._servers, self._timeout = settings.servers, settings.timeout
        self._admin = admin

    def shares(self, topic: str, bounds: Sequence[Bounds]) -> dict[str, list[Share]]:
        """Ask for every group of the cluster, and return those that read this topic."""
        with translated("listing the groups", self._servers):
            listed = self._admin.list_consumer_groups(request_timeout=self._timeout).result()
            names = sorted(group.group_id for group in listed.valid)
            return {name: shares for name in names if (shares := self._of(name, topic, bounds))}

    def reset(self, topic: str, group: str, offsets: Mapping[int, int]) -> None:
        """Commit for the group, which the coordinator allows only while it has no members."""
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

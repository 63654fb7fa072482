"""The bodies of messages about what is to be done: goals, strategies, designs, plans."""

from typing import Annotated, Any

import msgspec

Text = Annotated[str, msgspec.Meta(min_length=1)]
Number = int | float
Estimate = int | float | str  # agents write 60 as well as "2 days"
Whole = Annotated[int, msgspec.Meta(ge=0)]
Issue = int | str


class Body(msgspec.Struct, frozen=True):
    """What every body is: known fields are checked, others left alone."""


class Phase(Body, frozen=True):
    name: Text
    phase: int | str | None = None
    description: str = ""


class Strategy(Body, frozen=True):
    approach: Text
    phases: list[str | Phase] = []


class Deliverable(Body, frozen=True):
    file: Text
    description: str = ""
    location: str = ""


class Task(Body, frozen=True):
    task_id: Text
    title: Text
    description: str = ""
    phase: int | str | None = None
    priority: str = "normal"
    estimated_time: Estimate | None = None
    dependencies: list[str] = []
    skills_required: list[str] = []
    deliverables: list[str | Deliverable] = []


class UserGoal(Body, frozen=True):
    goal: Text
    context: Any = None


class StrategyRequest(Body, frozen=True):
    goal: Text
    requirements: list[str] = []
    context: Any = None


class StrategyResponse(Body, frozen=True):
    goal: Text
    strategy: Strategy
    task_count: Whole | None = None
    estimated_duration: Estimate | None = None
    risks: list[Any] = []
    recommendations: list[Any] = []


class TaskList(Body, frozen=True):
    goal: Text
    tasks: Annotated[list[Task], msgspec.Meta(min_length=1)]
    strategy_summary: str = ""

    def __post_init__(self) -> None:
        ids = [task.task_id for task in self.tasks]
        twice = next((id for id in ids if ids.count(id) > 1), None)
        if twice is not None:
            raise ValueError(f"task_id {twice!r:.60} is there twice")


class ArchitectureRequest(Body, frozen=True):
    goal: Text
    requirements: list[str] = []
    context: Any = None
    question: str = ""


class ArchitectureResponse(Body, frozen=True):
    goal: Text
    proposed_architecture: Any
    recommendations: list[Any] = []
    risks: list[Any] = []


class DesignReviewRequest(Body, frozen=True):
    goal: Text
    proposed_strategy: Strategy | None = None
    tasks: list[Any] = []
    question: str = ""


class DesignReviewResponse(Body, frozen=True):
    goal: Text
    review_result: Text
    comments: list[Any] = []
    suggestions: list[Any] = []
    design_concerns: list[Any] = []
    risks: list[Any] = []


class QualityPlanRequest(Body, frozen=True):
    goal: Text
    tasks: list[Any] = []
    question: str = ""


class QualityCriteria(Body, frozen=True):
    task_id: Text
    criteria: list[str]
    evaluation_method: str = ""


class QualityPlanResponse(Body, frozen=True):
    goal: Text
    quality_criteria: list[QualityCriteria]


class InsightRequest(Body, frozen=True):
    goal: Text
    proposed_strategy: Strategy | None = None
    question: str = ""


class InsightResponse(Body, frozen=True):
    goal: Text
    insights: list[Any]
    alternative_approaches: list[Any] = []
    recommendations: list[Any] = []

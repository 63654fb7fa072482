"""A web service that takes jobs and does them in the background: a job that was accepted is never lost.

POST /jobs stores a job and answers at once. A worker in the same process does the jobs; other processes of the same
service share the work. GET /jobs/ID says what became of one.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException, Request

import pabal.aio

URL = os.environ.get("JOBS_URL", "sqlite:jobs.db")


async def work(delivery: pabal.aio.Delivery) -> None:
    """Do one job. If this raises, or the process is killed, the job comes back as the policy says."""
    await asyncio.sleep(delivery.body.get("seconds", 0))
    if delivery.body.get("fail"):
        raise ValueError("this job cannot be done")


def end_service(running: asyncio.Task[int]) -> None:
    """A service that takes jobs and does none is worse than one that is started again."""
    if not running.cancelled() and running.exception() is not None:
        signal.raise_signal(signal.SIGTERM)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with pabal.aio.connect(URL) as mq:
        app.state.jobs = mq.queue("jobs")
        worker = pabal.aio.worker(app.state.jobs, work, concurrency=10)
        running = asyncio.create_task(worker.run(grace=5))
        running.add_done_callback(end_service)
        yield
        worker.stop()
        await running


app = FastAPI(lifespan=lifespan)


@app.post("/jobs", status_code=202)
async def create(job: dict[str, Any], request: Request) -> dict[str, str]:
    published = await request.app.state.jobs.publish(job)
    return {"id": published.id}


@app.get("/jobs/{id}")
async def show(id: str, request: Request) -> dict[str, Any]:
    entry = await request.app.state.jobs.find(id)
    if entry is None:
        raise HTTPException(404, "no such job, or it was done more than ten minutes ago")
    return {"id": id, "state": entry.state.value, "failure": entry.failure.reason if entry.failure else None}

"""Prompts answered in a structure: JSON extraction, tool calls, tables, lists of fields.

All records are invented from word lists. This module does not know models or corpora.
"""

from __future__ import annotations

import json
from random import Random

FIRST = (
    "Ana", "Ben", "Carla", "David", "Elena", "Farid", "Grace", "Hiro", "Ines", "Jonas",
    "Kira", "Liam", "Maya", "Noor", "Omar", "Petra",
)  # fmt: skip
LAST = (
    "Adler", "Brown", "Costa", "Diaz", "Evans", "Fischer", "Garcia", "Haddad", "Ito",
    "Jensen", "Kumar", "Lopez", "Meyer", "Novak",
)  # fmt: skip
CITIES = (
    "Lisbon", "Berlin", "Kyoto", "Nairobi", "Toronto", "Lima", "Oslo", "Dublin", "Prague",
    "Mumbai", "Seoul", "Austin",
)  # fmt: skip
ITEMS = (
    "lamp", "chair", "notebook", "kettle", "backpack", "printer", "bicycle", "headset",
    "keyboard", "blanket",
)  # fmt: skip
STATES = (
    "open", "closed", "pending", "shipped", "delayed", "cancelled", "approved",
)  # fmt: skip
MONTHS = (
    "January", "March", "April", "June", "July", "September", "October", "December",
)  # fmt: skip
TOOLS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("get_weather", "current weather of a city", ("city", "unit")),
    ("send_email", "send an email", ("to", "subject", "body")),
    ("create_event", "add a calendar event", ("title", "date", "time")),
    ("search_products", "search the shop", ("query", "max_price")),
    ("book_table", "book a restaurant table", ("city", "people", "time")),
    ("convert_currency", "convert an amount", ("amount", "from", "to")),
    ("set_timer", "set a timer", ("minutes", "label")),
    ("get_order", "look up an order", ("order_id",)),
)


def structured_prompt(random: Random) -> str:
    """One prompt of a kind chosen at random."""
    return random.choice((_extract, _extract, _tool, _tool, _fill, _table, _records))(random)


def _record(random: Random) -> dict[str, object]:
    return {
        "name": f"{random.choice(FIRST)} {random.choice(LAST)}",
        "age": random.randint(19, 78),
        "city": random.choice(CITIES),
        "order_id": f"{random.choice('ABCDEFGH')}{random.randint(1000, 9999)}",
        "item": random.choice(ITEMS),
        "quantity": random.randint(1, 9),
        "price": round(random.uniform(3, 400), 2),
        "status": random.choice(STATES),
        "date": f"{random.randint(1, 28)} {random.choice(MONTHS)} {random.randint(2019, 2026)}",
    }


def _sentence(record: dict[str, object], random: Random) -> str:
    frame = random.choice(
        (
            "{name}, {age}, from {city}, ordered {quantity} x {item} (order {order_id}) on {date} "
            "for {price} euros. The order is {status}.",
            "Order {order_id}: customer {name} ({city}) bought {quantity} {item} at {price} each. "
            "Status: {status}. Date: {date}.",
            "On {date} {name} wrote that the {item} from order {order_id} has not arrived in "
            "{city}. The status says {status}; the price was {price}.",
        )
    )
    return frame.format(**record)


def _extract(random: Random) -> str:
    record = _record(random)
    keys = random.sample(list(record), random.randint(3, 7))
    frame = random.choice(
        (
            "Extract the following fields from the text as JSON: {k}.\n\nText: {t}",
            "Text: {t}\n\nReturn a JSON object with the keys {k}. Return only JSON.",
            "Read the message and fill a JSON object with {k}.\n\nMessage:\n{t}\n\nJSON:",
            "Convert this text to YAML with the fields {k}.\n\n{t}",
            "{t}\n\nList {k} as bullet points.",
        )
    )
    return frame.format(k=", ".join(keys), t=_sentence(record, random))


def _tool(random: Random) -> str:
    offered = random.sample(TOOLS, random.randint(1, 4))
    tools = [
        {"name": n, "description": d, "parameters": dict.fromkeys(args, "string")}
        for n, d, args in offered
    ]
    record = _record(random)
    asks = {
        "get_weather": "What is the weather in {city}?",
        "send_email": "Write to {name} that the {item} is {status}.",
        "create_event": "Put a meeting with {name} into my calendar on {date}.",
        "search_products": "Find me a {item} for less than {price} euros.",
        "book_table": "Book a table for {quantity} in {city} at 7 pm.",
        "convert_currency": "How much is {price} euros in dollars?",
        "set_timer": "Set a timer for {age} minutes for the {item}.",
        "get_order": "Where is my order {order_id}?",
    }
    ask = asks[random.choice(offered)[0]].format(**record)
    return (
        f"You can call these tools:\n{json.dumps(tools, indent=random.choice((None, 2)))}\n\n"
        f"User: {ask}\n\nAnswer with one JSON object with the keys "
        '"name" and "arguments".'
    )


def _fill(random: Random) -> str:
    record = _record(random)
    old = json.dumps(record, indent=2)
    key = random.choice(("status", "city", "quantity", "price", "item"))
    new = _record(random)[key]
    return random.choice(
        (
            "Set {key} to {new} in this JSON and return the whole JSON.\n\n```json\n{old}\n```",
            "```json\n{old}\n```\n\nChange the value of {key} to {new}. Print the full object.",
            "Add the field note with the value checked to this JSON object:\n{old}",
            "Rename the key {key} to new_{key} and return all of the JSON.\n\n{old}",
        )
    ).format(key=key, new=new, old=old)


def _table(random: Random) -> str:
    keys = random.sample(["name", "city", "item", "quantity", "price", "status"], 3)
    rows = [_record(random) for _ in range(random.randint(3, 5))]
    lines = "\n".join(", ".join(str(r[k]) for k in keys) for r in rows)
    want = random.choice(("a markdown table", "a JSON array", "a list of dictionaries", "HTML"))
    return f"Turn these lines ({', '.join(keys)}) into {want}.\n\n{lines}"


def _records(random: Random) -> str:
    return random.choice(
        (
            "Create a JSON array of {n} invented customers with the keys name, age and city.",
            "Write a JSON object that describes a {item} with name, price, colours and stock.",
            "Write a YAML file with {n} entries about a {item} shop.",
            "Write a SQL query that selects all orders with status {status} in {city}.",
            "Write a SQL table definition for customers, orders and {item}s.",
        )
    ).format(n=random.randint(2, 5), **_record(random))

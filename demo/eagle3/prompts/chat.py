"""Open chat prompts: many request forms over many subjects. All wording is this project's own.

This module does not know models or corpora.
"""

from __future__ import annotations

from random import Random

TOPICS = (
    "the water cycle", "photosynthesis", "black holes", "the French Revolution", "inflation",
    "vaccines", "machine learning", "the human heart", "climate change", "renewable energy",
    "the Roman Empire", "supply and demand", "earthquakes", "the theory of evolution", "DNA",
    "quantum computers", "electric cars", "the solar system", "democracy", "the internet",
    "healthy eating", "sleep", "stress at work", "time management", "learning a language",
    "public speaking", "personal finance", "remote work", "meditation", "running",
    "gardening", "cooking pasta", "baking bread", "coffee", "chess", "jazz", "oil painting",
    "photography", "poetry", "science fiction", "detective novels", "Shakespeare", "opera",
    "the piano", "the guitar", "football", "swimming", "cycling", "hiking in the mountains",
    "travelling by train", "a trip to Japan", "a week in Rome", "camping", "the ocean",
    "whales", "bees", "cats", "training a dog", "birds of prey", "dinosaurs", "volcanoes",
    "rivers", "forests", "deserts", "the Moon", "Mars", "gravity", "light and colour",
    "sound waves", "electricity", "magnets", "batteries", "computers", "databases",
    "version control", "web browsers", "encryption", "robots", "social media", "video games",
    "online shopping", "small businesses", "marketing", "job interviews", "teamwork",
    "leadership", "friendship", "honesty", "courage", "kindness", "happiness", "memory",
    "childhood", "school", "university", "libraries", "museums", "architecture", "bridges",
    "city traffic", "air travel", "sailing", "clocks", "maps", "money", "taxes", "insurance",
    "trade", "farming", "the weather", "snow", "autumn", "a stormy night", "a lost key",
    "an old lighthouse", "a talking fox", "a secret garden", "a time machine", "a new neighbour",
    "the first day at work", "a family dinner", "a wedding", "a birthday party", "moving house",
    "recycling", "plastic waste", "clean water", "solar panels", "nuclear power", "antibiotics",
    "allergies", "headaches", "blood pressure", "exercise at home", "yoga", "vegetarian food",
    "chocolate", "tea", "spices", "the Silk Road", "ancient Egypt", "the Middle Ages",
    "the Renaissance", "the Industrial Revolution", "the Second World War", "the Cold War",
    "human rights", "free speech", "philosophy", "logic", "ethics", "artificial intelligence",
    "statistics", "probability", "algebra", "geometry", "prime numbers", "the number zero",
)  # fmt: skip
FORMS = (
    "Explain {t} in simple terms.", "What is the most interesting fact about {t}?",
    "Write a short story about {t}.", "Write a poem about {t}.", "Give me five tips about {t}.",
    "What are the advantages and disadvantages of {t}?", "Write a paragraph about {t}.",
    "Write a blog post about {t} with headings.", "Write an email to a friend about {t}.",
    "Make a list of ten words connected with {t}.", "Why does {t} matter?",
    "Describe {t} to a child of six.", "What are common misconceptions about {t}?",
    "Write a dialogue between two people about {t}.", "Give a short history of {t}.",
    "What should a beginner know about {t}?", "Write a persuasive essay on {t}.",
    "Compare {t} with {u}.", "How is {t} connected with {u}?", "Which is better, {t} or {u}?",
    "Plan a one-week course on {t}.", "Write an outline for a talk about {t}.",
    "Ask me three questions about {t} and answer them.", "Tell me a joke about {t}.",
    "Write a product description connected with {t}.", "What would happen without {t}?",
    "Write a formal letter to a city council about {t}.", "What are the main parts of {t}?",
    "Imagine that you are an expert on {t}. What would you tell the public?",
    "Pretend to be a journalist and report on {t}.", "Write a speech of one minute about {t}.",
    "How can I learn more about {t}?", "Write three short headlines about {t}.",
    "Give me a step-by-step guide to {t}.", "Summarize what is known about {t}.",
    "Write a diary entry that mentions {t} and {u}.", "Who are famous people linked to {t}?",
    "I am writing about {t}. Suggest a title, an opening sentence and a conclusion.",
    "What are the causes and the effects of {t}? Answer in fewer than 150 words.",
    "Describe a scene with {t}, using vivid images.", "Define {t} and give two examples.",
)  # fmt: skip
PEOPLE = ("manager", "teacher", "customer", "landlord", "colleague", "doctor", "neighbour")
OCCASIONS = (
    "asking for a day off", "thanking them for their help", "apologising for a late reply",
    "asking for feedback on a report", "inviting them to a meeting on Friday",
    "explaining a delay", "asking about the price of a service", "saying goodbye",
    "congratulating them", "reporting a problem with an order", "asking for advice",
)  # fmt: skip


def chat_prompt(random: Random) -> str:
    """One open request; about one in four is a greeting, an email, a sum or a puzzle."""
    roll = random.random()
    if roll < 0.76:
        first, second = random.sample(TOPICS, 2)
        return random.choice(FORMS).format(t=first, u=second)
    if roll < 0.86:
        return _sum(random)
    if roll < 0.94:
        frame = random.choice(
            (
                "Write an email to my {p} {o}.",
                "Write a short and polite message to a {p}, {o}.",
                "Draft a formal letter to a {p} {o}. Keep it short.",
            )
        )
        return frame.format(p=random.choice(PEOPLE), o=random.choice(OCCASIONS))
    return random.choice(SMALL_TALK)


SMALL_TALK = (
    "Hello, who are you?", "What can you do?", "Tell me something interesting.",
    "How are you today?", "What is the capital of France?", "Who wrote Hamlet?",
    "What is the largest ocean?", "How many days are in a leap year?", "I feel tired. Help me.",
    "I am bored. What should I do?", "What should I cook tonight?", "Recommend a good book.",
    "Translate 'good morning' into Spanish, French and German.", "What is the speed of light?",
    "Name five countries in Africa.", "What is the boiling point of water?",
    "Suggest a name for a cat.", "Give me a riddle and its answer.", "What is love?",
    "How do I tie a tie?", "How do I make tea?", "Sort these words: pear, apple, fig, kiwi.",
)  # fmt: skip


def _sum(random: Random) -> str:
    a, b, c = random.randint(2, 60), random.randint(2, 60), random.randint(2, 12)
    return random.choice(
        (
            f"What is {a} + {b}? Explain.",
            f"What is {a} times {c}?",
            f"A shop sells {a} apples a day. How many does it sell in {c} weeks?",
            f"Anna has {a + b} coins and gives {b} away. How many are left?",
            f"A train travels {a * 10} km in {c} hours. What is its average speed?",
            f"Solve the equation {c}x + {a} = {a + c * b} step by step.",
            f"A rectangle is {a} cm long and {c} cm wide. What are its area and perimeter?",
            f"If a book costs {a} euros with a discount of {c}%, what was the price before?",
            f"{a} people share {b * c} sweets. How many does each get, and how many are left?",
        )
    )

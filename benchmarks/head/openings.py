"""The first words of training prompts. The target itself writes the rest, so the prompts need no data set.

None of it is taken from the benchmarks that the head is evaluated on.
"""

# ruff: noqa: SIM905 - word lists read best as text

import random
from dataclasses import dataclass
from typing import Literal

PromptKind = Literal["code", "maths", "chat"]

VERBS = """count sum find remove sort merge split filter reverse rotate compare validate parse format group rank sample
shift scale clip pad trim flatten chunk pair index swap toggle collapse expand encode decode match replace extract
collect normalize average accumulate partition deduplicate interleave transpose score convert compute check is_valid
longest shortest largest smallest first last nearest common missing unique""".split()
NOUNS = """vowels words digits lines characters brackets intervals primes divisors multiples fractions coordinates
points rectangles triangles matrix rows columns grid path tree nodes edges graph stack queue heap pairs triples subsets
permutations dates hours minutes temperatures prices orders invoices scores grades students names emails urls tags
colors pixels tokens sentences paragraphs votes cards moves steps sequence substring prefix suffix palindrome anagrams
running_total moving_average checksum binary_string hex_string roman_number word_lengths letters even_numbers
odd_numbers squares cubes gaps peaks valleys duplicates neighbors windows segments buckets inventory passwords
phone_numbers file_paths versions playlists recipes tickets seats weights distances angles currency balance salaries
ages""".split()
ENDINGS = ["by_length", "in_range", "with_limit", "from_list", "at_index", "per_group", "in_text"]
PARAMETERS = [
    "numbers: List[int]", "text: str", "items: list", "values: List[float]", "s: str", "n: int", "a: int, b: int",
    "words: List[str]", "matrix: List[List[int]]", "data: dict", "x: float, y: float", "nums: List[int], target: int",
    "string: str, k: int", "lst", "arr", "n", "a, b", "s", "numbers: List[int], limit: int", "first: str, second: str",
    "rows: int, cols: int", "records: List[dict]", "pairs: List[Tuple[int, int]]", "text: str, width: int = 80",
    "lst, n",
]  # fmt: skip
RESULTS = ["int", "str", "bool", "List[int]", "List[str]", "float", "list", "dict", "Optional[int]", ""]
FIRST_WORDS = [
    "", "Return", "Given", "Write a function that", "Check if", "Find", "Count", "Compute", "You are given", "Take",
    "Returns", "This function", "Create a function which", "For a given", "Convert", "Remove", "Implement", "From",
    "Sort", "Calculate",
]  # fmt: skip

PEOPLE = """Ana Boris Chloe Devi Elif Farid Greta Hugo Imani Jonas Kira Liam Mina Noor Oskar Priya Quentin Rosa Sven
Tara Umar Vera Wes Ximena Yara Zane Marta Pablo Ines Kofi Leila Dmitri Hana Otto Nadia Felix Amara Stefan Lucia Ravi
Mei Omar Sofia Ivan Clara Bruno Aisha Theo Nina Marco""".split()
THINGS = """marbles apples stickers notebooks pencils cookies balloons seashells tickets coins bricks eggs flowers
candles tiles ribbons cupcakes bottles stamps fish trees chairs shirts puzzles beads lemons muffins batteries lamps
postcards oranges carrots buttons trophies magnets boxes pies sandwiches bags plants books cards toys pens oysters
tomatoes shells""".split()
PLACES = """bakery farm school library garage market garden factory hospital museum bus train cinema gym hotel harbor
bookstore zoo workshop warehouse restaurant orchard office theater park""".split()
SITUATIONS = [
    "{name} has {n} {thing}.", "{name} buys {n} {thing} for ${m} each", "A {place} sells {n} {thing}",
    "{name} and {friend} are", "There are {n} {thing} in a {place}.", "Every day {name} walks {m} miles",
    "{name} is {n} years old.", "A {place} has {m} rows of {thing}", "{name} earns ${m} an hour",
    "It takes {name} {n} minutes to", "{name} saved ${n}", "On Monday, {name}", "In a class of {n} students,",
    "{name} wants to", "A recipe needs {m} cups of flour", "{name}'s brother", "{name}'s garden", "{name}'s team",
    "The price of a ticket is ${n}.", "{name} reads {n} pages", "A train travels at {n} miles per hour",
    "{name} baked {m} dozen {thing}", "If {name}", "Last week, {name} sold {n} {thing}",
    "{name} splits {n} {thing} between", "A tank holds {n} gallons of water",
]  # fmt: skip

TOPICS = [
    "a lighthouse keeper", "remote work", "the water cycle", "a lost dog", "honey bees", "electric cars",
    "a medieval castle", "time zones", "the stock market", "a first job interview", "black holes",
    "learning the piano", "a family dinner", "recycling", "the French Revolution", "chess openings", "sleep",
    "solar panels", "a haunted library", "public transport", "volcanoes", "friendship", "online privacy",
    "the human heart", "gardening in small spaces", "a robot teacher", "climate change", "ancient Egypt", "coffee",
    "marathon training", "photosynthesis", "a startup pitch", "inflation", "wild mushrooms", "the printing press",
    "sea turtles", "a broken promise", "machine learning", "vaccines", "jazz music", "the moon landing",
    "a rainy afternoon", "budget travel", "team conflict", "gravity", "bread baking", "democracy", "a desert journey",
    "database indexes", "poetry", "mental health", "the Silk Road", "plastic waste", "school uniforms", "ocean tides",
    "a detective story", "supply and demand", "DNA", "video games", "city parks", "minimalism", "earthquakes",
    "street food", "antibiotics", "bilingual children", "a winter festival", "urban farming", "space tourism",
    "the immune system", "a museum visit", "renewable energy", "blockchain", "houseplants", "ethics of AI",
    "the Roman Empire", "fear of flying", "a grandmother's recipe", "hiking safety", "customer complaints",
    "the speed of light", "world hunger", "tea ceremonies", "weather forecasting", "rivers", "old photographs",
    "leadership",
]  # fmt: skip
TASKS = [
    "Write a short story about {}.", "Write a poem about {}.", "Explain {} to a ten-year-old.",
    "Give me five tips about {}.", "What are the pros and cons of {}?", "Draft an email to a colleague about {}.",
    "Write a blog post introduction about {}.", "Summarize the main ideas behind {} in three sentences.",
    "Pretend you are an expert on {}. Answer a beginner's first question.",
    "Imagine a conversation between two friends about {}.", "Make a list of questions for an interview about {}.",
    "What is the history of {}?", "Why does {} matter today?",
    "Compare {} with something similar and describe the differences.",
    "Extract the key facts about {} and return them as JSON.", "Describe {} using vivid details.",
    "Create an outline for an essay on {}.", "Is it possible to be wrong about {}? Reason step by step.",
    "Act as a travel guide and talk about {}.", "Write a persuasive paragraph about {}.",
    "How would you teach a lesson on {}?", "Rewrite this sentence in a formal tone: I really care about {}.",
    "Name three common mistakes people make with {} and how to avoid them.",
    "Write a product description related to {}.", "What would happen if there were no {}?",
    "Which books or ideas would help someone understand {}?",
    "Write a dialogue in which a teacher explains {} to a student.", "Give a short definition of {} and an example.",
    "Plan a weekend around {}.", "Write a speech of about 150 words on {}.",
]  # fmt: skip
CHAT_STARTS = [
    "", "", "", "", "", "How do I", "What is the", "Can you", "Write a", "Explain", "I need", "You are a", "Imagine",
    "Please", "Describe", "Why", "Give me", "Create", "Help me", "My friend", "Is it", "Compare",
    "Read the following", "Identify", "Given", "In the style of", "Suppose", "Who", "Tell me", "Summarize",
]  # fmt: skip


@dataclass(frozen=True)
class Opening:
    """The beginning of a user's message, and the text that ends what the target adds to it."""

    kind: PromptKind
    text: str
    stop: str | None = None


def code_openings(rng: random.Random, count: int) -> list[Opening]:
    """Function signatures with the docstring begun; ``count`` different ones."""
    found: dict[str, Opening] = {}
    while len(found) < count:
        name = f"{rng.choice(VERBS)}_{rng.choice(NOUNS)}"
        if rng.random() < 0.1:
            name = f"{name}_{rng.choice(ENDINGS)}"
        parameters, result = rng.choice(PARAMETERS), rng.choice(RESULTS)
        types = [each for each in ("List", "Optional", "Tuple") if f"{each}[" in parameters + result]
        imports = f"from typing import {', '.join(types)}\n\n\n" if types else rng.choice(["", "\n"])
        arrow = f" -> {result}" if result and ":" in parameters else ""
        docstring = rng.choice(['    """ ', '    """', '    """\n    ']) + rng.choice(FIRST_WORDS)
        text = f"{imports}def {name}({parameters}){arrow}:\n{docstring}".rstrip(" ")
        found[text] = Opening("code", text, '"""')
    return list(found.values())


def maths_openings(rng: random.Random, count: int) -> list[Opening]:
    """First words of word problems; ``count`` different ones."""
    found: dict[str, Opening] = {}
    while len(found) < count:
        text = rng.choice(SITUATIONS).format(
            name=rng.choice(PEOPLE),
            friend=rng.choice(PEOPLE),
            thing=rng.choice(THINGS),
            place=rng.choice(PLACES),
            n=rng.randint(3, 120),
            m=rng.randint(2, 30),
        )
        found[text] = Opening("maths", text, "?")
    return list(found.values())


def chat_openings(rng: random.Random, count: int) -> list[Opening]:
    """First words of a message, or none at all: then the target makes up a user's message from the template alone."""
    return [Opening("chat", rng.choice(CHAT_STARTS)) for _ in range(count)]


def chat_messages(rng: random.Random, count: int) -> list[str]:
    """Whole messages: a task about a topic; ``count`` different ones."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[rng.choice(TASKS).format(rng.choice(TOPICS))] = None
    return list(found)

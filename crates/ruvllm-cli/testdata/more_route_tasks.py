#!/usr/bin/env python3
"""More tasks of the subjects and wordings of route-tasks.jsonl, by the rule that its tasks follow, none of them in it.

    python3 more_route_tasks.py [--per-wording 8] [--seed 1] > more.jsonl

A wording has fewer where its values are used up (the eight functions of 'write python' are all in the file). That the
rule covers the file is checked first: every task in it must match a wording below. Nothing here knows any model.
"""
import argparse
import json
import random
import re
from pathlib import Path

PEOPLE = "Anna Ben Carla David Emma Felix Grace Hugo Ivy Jack".split()
FAMILIES, HOSTS = "berg jones kim rossi smith".split(), "acme.net example.com mail.org shop.io uni.edu".split()
THINGS, DAYS = "apples books cards coins pencils stamps".split(), "Monday Tuesday Friday".split()
WORDS = ("bridge candle cloud forest garden hammer marble orange planet river silver stone tiger velvet "
         "window").split()
COUNTED = WORDS + "banana computer letter mississippi".split()
BUILDINGS, EVENTS = "bridge factory library museum school".split(), "closed founded opened rebuilt".split()
CAPITALS = dict(zip(
    "Australia Austria Brazil Canada Chile Cuba Denmark Egypt Finland France Germany Greece Hungary Iran Iraq Ireland Italy "
    "Japan Kenya Morocco Nepal Norway Peru Poland Portugal Spain Sweden Thailand Turkey Vietnam".split(),
    "Canberra Vienna Brasilia|Brasília Ottawa Santiago Havana Copenhagen Cairo Helsinki Paris Berlin Athens Budapest Tehran "
    "Baghdad Dublin Rome Tokyo Nairobi Rabat Kathmandu Oslo Lima Warsaw Lisbon Madrid Stockholm Bangkok Ankara "
    "Hanoi".split()))
FRENCH = dict(zip("book bread dog friend hand house king milk moon night red school sun tree water".split(),
                  "livre pain chien ami|amie main maison roi lait lune nuit rouge école|ecole soleil arbre eau".split()))
OPPOSITES = dict(zip(
    "big clean day early fast full happy hot light loud old open rich strong up wet".split(),
    "small|little dirty night late slow empty sad|unhappy cold dark|heavy quiet|silent|soft young|new closed|shut|close "
    "poor weak down dry".split()))
REVIEWS = {
    "positive": ["A brilliant, moving film.", "Best purchase I have made in years.", "I loved every minute of it.",
                 "Everything worked perfectly, I am delighted.", "Superb quality, highly recommended.",
                 "The food was wonderful and the staff friendly.", "The service was quick and very kind.",
                 "What a fantastic hotel, we will come again."],
    "negative": ["A dull, painful film.", "Awful quality, it broke at once.", "I hated every minute of it.",
                 "Nothing worked, I am very angry.", "The food was cold and the staff rude.",
                 "The service was slow and unfriendly.", "What a terrible hotel, never again.",
                 "Worst purchase I have made in years."],
}
FUNCTIONS = {
    "add": "takes two numbers and returns their sum", "square": "takes a number and returns its square",
    "count_vowels": "takes a string and returns how many vowels it has",
    "factorial": "takes a number and returns its factorial", "is_even": "takes a number and returns whether it is even",
    "maximum": "takes a list and returns its largest item", "reverse": "takes a string and returns it reversed",
    "to_upper": "takes a string and returns it in upper case",
}

# Six wordings of each subject; what stands in braces is drawn.
WORDINGS = {
    "addition": ["What is {a} + {b}? Answer with the number only.", "Compute {a} plus {b}. Give just the result.",
                 "Add {a} and {b}.", "{a} + {b} = ?", "If you add {a} to {b}, what do you get? Reply with one number.",
                 "Tell me the sum of {a} and {b}."],
    "multiplication": ["What is {a} times {b}? Answer with the number only.", "Compute {a} * {b}.",
                       "Multiply {a} by {b}. Give just the result.", "{a} x {b} = ?", "What is the product of {a} and {b}?",
                       "How much is {a} multiplied by {b}?"],
    "word problem": ["{who} has {a} {things} and gives {b} of them to {other}. How many {things} does {who} have left?",
                     "There were {a} {things} on the table. {who} took {b}. How many are still there?",
                     "{who} bought {a} {things} and lost {b} of them. How many remain? Answer with a number.",
                     "A box holds {a} {things}. {who} removes {b}. What number of {things} is left in the box?",
                     "{who} needs {a} {things} and already has {b}. How many more does {who} need?",
                     "Out of {a} {things}, {b} are broken. How many are not broken?"],
    "comparison": ["Which is larger, {a} or {b}? Answer with the number only.",
                   "Which number is greater: {a} or {b}? Reply with that number only.",
                   "Of {a} and {b}, name the bigger one. Just the number.", "Give the maximum of {a} and {b}. Number only.",
                   "{a} or {b}: which one is higher? Answer only with it.",
                   "Pick the larger number: {a}, {b}. Say nothing else."],
    "extract mail": ['Extract the e-mail address from this text: "Please write to {mail} before {day}, room {n}." Answer '
                     "with the address only.",
                     "Text: {who} can be reached at {mail} or in room {n}. What is the e-mail address?",
                     "Find the e-mail in: 'Contact: {who}, {mail}, phone {n}'. Output only the e-mail.",
                     '"Hi, I am {who}. My address is {mail}. See you {day}." Which e-mail address is mentioned?',
                     "Return only the e-mail address contained here: order {n} by {who} <{mail}> on {day}",
                     "What e-mail address appears in the following line? {day} {n} {who} {mail} ok"],
    "extract year": ["In which year? Text: The {it} was {event} in {year} and has {n} rooms. Answer with the year.",
                     "The {it} was {event} in {year}. It employs {n} people. What year was it {event}?",
                     'Extract the year: "Since {year}, when The {it} was {event}, {n} visitors came each day."',
                     "Read: The {it}, {event} {year}, is {n} metres long. Which year is named?",
                     "Give only the year mentioned: '{n} guests saw how The {it} was {event} in {year}.'",
                     'When was it {event}? "The {it} ({n} windows) was {event} in the year {year}."'],
    "capital": ["What is the capital of {of}?", "Name the capital city of {of}.",
                "Which city is the capital of {of}? One word.", "The capital of {of} is",
                "In which city does the government of {of} sit?", "Tell me {of}'s capital."],
    "repeat": ["Repeat exactly: {text}", 'Say "{text}" and nothing else.', "Reply with the following text only: {text}",
               "Output this and only this: {text}", "Echo: {text}",
               "Write the words between the brackets, without them: [{text}]"],
    "membership": ['Is the word "{word}" in this list: {list}? Answer yes or no.',
                   "List: {list}. Does it contain {word}? Yes or no.", 'Does "{word}" occur in "{list}"? Reply yes or no.',
                   "Yes or no: {word} is one of {list}.", "Among {list}, is there {word}? Answer with yes or no only.",
                   "Check whether {word} is part of: {list}. Say yes or no."],
    "sentiment": ['Is this review positive or negative? "{text}" Answer with one word.',
                  "Classify the sentiment as positive or negative: {text}",
                  "Review: {text}\nSentiment (positive/negative):", '"{text}" Does this sound positive or negative?',
                  "Label with 'positive' or 'negative' only: {text}", "Positive or negative? {text}"],
    "python value": ["What does this Python code print?\nprint({code})",
                     "Evaluate the Python expression {code}. Answer with the number only.",
                     "In Python, what is the value of {code}?", "x = {code}\nAfter this Python line, what is x?",
                     "What will `print({code})` output?", "Give the result of the Python expression: {code}"],
    "write python": ["Write a Python function {name} that {does}.",
                     "Give me Python code for a function called {name}: it {does}. Code only.",
                     "Define `{name}` in Python. It {does}.", "Implement in Python: {name}, which {does}. No explanation.",
                     "I need a short Python function named {name} which {does}.", "Python: write def {name} ... It {does}."],
    "json": ['Write a JSON object with the key "name" set to "{who}" and the key "age" set to {n}. Output only the JSON.',
             "Convert to JSON with keys name and age: {who} is {n} years old.",
             '{who}, {n}. Give this as JSON with "name" and "age" (a number).',
             "Return JSON only, fields name (string) and age (number), for {who} who is {n}.",
             "Make a JSON object: name = {who}, age = {n}.",
             'Output {{"name": ..., "age": ...}} filled in for {who}, aged {n}.'],
    "count letters": ['How many letters are in the word "{of}"?', "Count the letters of {of}. Answer with a number.",
                      "What is the length of the word {of}?", "The word '{of}' has how many letters? Number only.",
                      'Number of characters in "{of}"?', "Spell out how many letters {of} has, as a digit."],
    "french": ["Translate into French: {of}", 'What is the French word for "{of}"?', "How do you say {of} in French? One word.",
               "English: {of}. French:", "Give the French translation of '{of}' only.", 'In French, "{of}" is called'],
    "opposite": ['What is the opposite of "{of}"? One word.', "Give an antonym of {of}.", "Name the opposite: {of}",
                 "{of} is the opposite of which word?", "The contrary of '{of}' is", "Which word means the opposite of {of}?"],
}


def number(value, **more):
    return {"kind": "number", "of": value, **more}


def word(values):
    return {"kind": "word", "of": values.split("|"), "not": []}


def draw(subject, r):
    """Returns what is drawn for a task of a subject, and its check."""
    some = r.randint
    match subject:
        case "addition":
            a, b = some(2, 60), some(2, 40)
            return {"a": a, "b": b}, number(a + b)
        case "multiplication":
            a, b = some(3, 12), some(3, 19 if r.random() < 0.5 else 12)
            return {"a": a, "b": b}, number(a * b)
        case "word problem":
            b, left = some(2, 15), some(5, 30)
            who, other = r.sample(PEOPLE, 2)
            return {"a": b + left, "b": b, "who": who, "other": other, "things": r.choice(THINGS)}, number(left)
        case "comparison":
            a, b = r.sample(range(10, 100), 2)
            return {"a": a, "b": b}, number(max(a, b), first=True)
        case "extract mail":
            who = r.choice(PEOPLE)
            mail = f"{who.lower()}.{r.choice(FAMILIES)}{some(2, 99)}@{r.choice(HOSTS)}"
            return {"who": who, "mail": mail, "day": r.choice(DAYS), "n": some(100, 999)}, word(mail)
        case "extract year":
            year = some(1810, 2009)
            return {"it": r.choice(BUILDINGS), "event": r.choice(EVENTS), "year": year, "n": some(10, 90)}, number(year)
        case "capital" | "french" | "opposite":
            of, answers = r.choice(sorted({"capital": CAPITALS, "french": FRENCH, "opposite": OPPOSITES}[subject].items()))
            return {"of": of}, word(answers)
        case "repeat":
            text = " ".join(r.sample(WORDS, some(1, 3)))
            return {"text": text}, {"kind": "exact", "of": text}
        case "membership":
            listed = r.sample(WORDS, 5)
            is_in = r.random() < 0.5
            asked = r.choice(listed if is_in else [one for one in WORDS if one not in listed])
            check = {"kind": "choice", "of": "yes" if is_in else "no", "among": ["yes", "no"]}
            return {"word": asked, "list": ", ".join(listed)}, check
        case "sentiment":
            kind = r.choice(["positive", "negative"])
            return {"text": r.choice(REVIEWS[kind])}, {"kind": "choice", "of": kind, "among": ["positive", "negative"]}
        case "python value":
            a, b, n = some(2, 9), some(2, 9), some(2, 9)
            code = r.choice([f"len('{r.choice(WORDS)}')", f"max([{a}, {b}, {max(a, b) + some(2, 8)}])", f"sum([{a}, {b}, 1])",
                             f"{a} + {b} * 2", f"abs(-{some(10, 50)})"])
            return {"code": code}, number(eval(code))
        case "write python":
            name = r.choice(sorted(FUNCTIONS))
            return {"name": name, "does": FUNCTIONS[name]}, {
                "kind": "regex", "of": rf"def {name}\([^)]+\)[^:]*:[\s\S]*return"}
        case "json":
            who, n = r.choice(PEOPLE), some(18, 78)
            return {"who": who, "n": n}, {"kind": "json", "of": {"name": who, "age": n}}
        case "count letters":
            of = r.choice(COUNTED)
            return {"of": of}, number(len(of))


def check_rule(known):
    """Fails unless every known task is one that could be drawn."""
    tries = random.Random(0)
    for subject, wordings in WORDINGS.items():
        checks = {json.dumps(draw(subject, tries)[1], sort_keys=True) for _ in range(4000)}
        for i, wording in enumerate(wordings):
            slots = re.sub(r"\\{\w+\\}", ".+", re.escape(wording)).replace(r"\{\{", r"\{").replace(r"\}\}", r"\}")
            tasks = [task for task in known if task["template"] == f"{subject}/{i}"]
            assert tasks, (subject, i)
            for task in tasks:
                assert re.fullmatch(slots, task["prompt"]), (wording, task["prompt"])
                if subject not in ("extract mail", "repeat", "json", "addition"):
                    assert json.dumps(task["check"], sort_keys=True) in checks, task


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--per-wording", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    known = [json.loads(line) for line in (Path(__file__).parent / "route-tasks.jsonl").open(encoding="utf-8")]
    check_rule(known)
    used, r, tasks = {task["prompt"] for task in known}, random.Random(args.seed), []
    for subject, wordings in WORDINGS.items():
        for i, wording in enumerate(wordings):
            n = 0
            for _ in range(2000):
                values, check = draw(subject, r)
                prompt = wording.format(**values)
                if n < args.per_wording and prompt not in used:
                    used.add(prompt)
                    tasks.append({"prompt": prompt, "check": check, "subject": subject, "template": f"{subject}/{i}"})
                    n += 1
    for task in tasks:
        print(json.dumps(task, ensure_ascii=False))


if __name__ == "__main__":
    main()

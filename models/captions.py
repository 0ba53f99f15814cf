"""The words for a scene: many ways to say the same thing, so that paraphrases work. Lower case, words and commas only."""
import re

from scenes import KINDS

# Names of each object, one or more; most speakers use the first.
NAMES = {
    "house": ["house", "home", "cottage"], "castle": ["castle", "fortress"], "lighthouse": ["lighthouse"], "tree": ["tree"],
    "flower": ["flower", "blossom", "daisy"], "mushroom": ["mushroom", "toadstool"], "cactus": ["cactus"], "sun": ["sun"],
    "moon": ["moon", "crescent moon", "crescent"], "star": ["star"], "cloud": ["cloud"], "mountain": ["mountain", "peak"],
    "boat": ["boat", "sailboat", "ship", "sailing boat"], "car": ["car", "automobile", "vehicle"],
    "rocket": ["rocket", "spaceship", "space rocket"], "balloon": ["balloon", "hot air balloon"],
    "umbrella": ["umbrella", "parasol"], "lamp": ["lamp", "table lamp"], "apple": ["apple"], "cat": ["cat", "kitten", "kitty"],
    "dog": ["dog", "puppy", "doggy"], "fish": ["fish"], "bird": ["bird"], "butterfly": ["butterfly"], "heart": ["heart"],
    "circle": ["circle", "disc", "ball"], "square": ["square", "box"], "triangle": ["triangle", "pyramid"],
}
PLURALS = {"fish": "fish", "cactus": "cacti", "butterfly": "butterflies", "puppy": "puppies", "kitty": "kitties", "doggy": "doggies",
           "daisy": "daisies", "fortress": "fortresses", "box": "boxes"}
PINE_NAMES = ["pine", "pine tree", "fir tree", "fir", "tree"]
COLOUR_NAMES = {
    "red": ["red", "red", "red", "crimson", "scarlet"], "orange": ["orange"], "yellow": ["yellow", "yellow", "golden"], "green": ["green"],
    "blue": ["blue"], "purple": ["purple", "purple", "violet"], "pink": ["pink"], "brown": ["brown"], "black": ["black"],
    "white": ["white"], "grey": ["grey", "gray"], "turquoise": ["turquoise", "turquoise", "teal", "cyan"],
}
SIZE_NAMES = {"small": ["small", "little", "tiny"], "big": ["big", "large", "huge", "giant"]}
COUNT_NAMES = {2: ["two", "two", "two", "2", "a pair of"], 3: ["three", "three", "3"], 4: ["four", "four", "4"]}
PRETTY = ["beautiful", "pretty", "lovely", "nice", "cute", "simple", "bright"]

RELATION_NAMES = {
    "left of": ["left of", "to the left of", "on the left of", "on the left side of"],
    "right of": ["right of", "to the right of", "on the right of", "on the right side of"],
    "above": ["above", "over", "on top of", "higher than"],
    "below": ["below", "under", "beneath", "underneath"],
    "in front of": ["in front of", "before"],
    "behind": ["behind"],
}
INVERSE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above", "in front of": "behind"}
BESIDE = ["next to", "beside", "and", "with", "near", "by"]

SETTING_NAMES = {
    "plain": ["on a plain background", "on a simple background", "with a plain backdrop", "in front of a plain wall", "on an empty background"],
    "sea": ["by the sea", "at the sea", "by the ocean", "at the beach", "on the beach", "on the shore", "near the water", "at the seaside",
            "with the sea in the background", "on the coast"],
    "meadow": ["in a meadow", "on a meadow", "in the grass", "on a green field", "in a field", "on a lawn", "in a park", "in the countryside",
               "on green hills", "on a grassy hill"],
    "desert": ["in the desert", "in a desert", "among sand dunes", "in the dunes", "in the sand", "in a sandy desert"],
    "snow": ["in the snow", "in winter", "in a snowy landscape", "on a snowy field", "on a snowy day", "in falling snow"],
    "city": ["in the city", "in a city", "in town", "on a street", "in front of a skyline", "with a city in the background", "downtown"],
    "forest": ["in the forest", "in a forest", "in the woods", "among trees", "in front of a forest"],
}
SETTING_NOUNS = {"plain": ["plain background", "simple background"], "sea": ["sea", "ocean", "beach", "seaside"],
                 "meadow": ["meadow", "grass", "field", "hills"], "desert": ["desert", "dunes", "sand"],
                 "snow": ["snow", "winter", "snowy landscape"], "city": ["city", "skyline", "street"],
                 "forest": ["forest", "woods"]}
TIME_NAMES = {
    "day": ["by day", "during the day", "in daylight", "at noon", "in the morning", "on a sunny day", "under a blue sky"],
    "sunset": ["at sunset", "at dusk", "in the evening", "at dawn", "at sundown", "in the evening light", "at twilight"],
    "night": ["at night", "by night", "under the stars", "on a starry night", "in the dark", "at midnight", "under a starry sky"],
}
TIME_NOUNS = {"day": ["day", "daylight"], "sunset": ["sunset", "evening", "dusk"], "night": ["night", "starry night"]}
MEDIUM = ["a picture of", "an image of", "a drawing of", "an illustration of", "a painting of", "a flat illustration of", "a vector drawing of",
          "a simple picture of", "a scene with", "i see", "show me", "draw", "there is"]


def plural(name):
    *head, last = name.split()
    return " ".join([*head, PLURALS.get(last, last + "s")])


def noun_phrase(rng, group, drawing, article=True):
    """A group in words: 'two small red houses'."""
    names = PINE_NAMES if (group.object, drawing) == ("tree", 1) else NAMES[group.object]
    name = names[0] if rng.random() < 0.65 and group.object != "tree" else rng.choice(names)
    words = []
    if rng.random() < 0.05:
        words.append(rng.choice(PRETTY))
    if group.size != "normal" and rng.random() < 0.95:
        words.append(rng.choice(SIZE_NAMES[group.size]))
    if group.colour != KINDS[group.object][2] or rng.random() < 0.6:
        words.append(rng.choice(COLOUR_NAMES[group.colour]))
    words.append(name if group.count == 1 else plural(name))
    if group.count > 1:
        return " ".join([rng.choice(COUNT_NAMES[group.count]), *words])
    if not article:
        return " ".join(words)
    if rng.random() < 0.08:
        return " ".join(["one", *words])
    if rng.random() < 0.10 or (group.object in ("sun", "moon") and len(words) == 1):
        return " ".join(["the", *words])
    return " ".join(["an" if words[0][0] in "aeiou" else "a", *words])


def main_part(rng, scene, phrases):
    """The groups and how they relate. `phrases` stand for the groups, in their order."""
    if len(phrases) == 1:
        if scene.side:
            return f"{phrases[0]} {rng.choice(('on the', 'on the', 'to the', 'at the'))} {scene.side}{rng.choice(('', ' side'))}"
        return phrases[0]
    relation, (a, b) = scene.relation, phrases[:2]
    if rng.random() < 0.35:
        relation, a, b = INVERSE[relation], b, a
    told = rng.choice(RELATION_NAMES[relation])
    sideways = relation in ("left of", "right of")
    if sideways and rng.random() < 0.12:  # the sides told one by one
        sides = ("left", "right") if relation == "left of" else ("right", "left")
        pair = f"{a} on the {sides[0]} and {b} on the {sides[1]}"
    elif sideways and rng.random() < 0.12:
        pair = f"{a} {rng.choice(BESIDE)} {b}"
    else:
        is_ = rng.choice(("", "", "", "", "is ")) if scene.groups[phrases.index(a)].count == 1 else ""
        pair = f"{a} {is_}{told} {b}"
    if len(phrases) == 3:
        sky = phrases[2]
        return rng.choice((f"{pair} under {sky}", f"{pair} and {sky} above", f"{pair} with {sky} in the sky", f"{pair} below {sky}",
                           f"{sky} above {pair}", f"{sky} over {pair}", f"{pair} and {sky} in the sky", f"{pair}, {sky} in the sky"))
    return pair


def key_words(rng, scene, drawings):
    """'red house, yellow sun, sea, sunset': only for scenes whose parts have no relation to tell."""
    parts = [noun_phrase(rng, g, d, article=False) for g, d in zip(scene.groups, drawings)]
    parts += [rng.choice(SETTING_NOUNS[scene.setting])] * ("setting" in scene.told)
    parts += [rng.choice(TIME_NOUNS[scene.time])] * ("time" in scene.told)
    return ", ".join(parts)


def caption(scene, rng):
    """One of the many captions of a scene."""
    return worded(scene, rng)[0]


def worded(scene, rng):
    """One of the many captions of a scene, and the groups in the order it speaks of them."""
    drawings = [next(t.drawing for t in scene.things if t.group == i) for i in range(len(scene.groups))]
    if len(scene.groups) == 1 and not scene.side and rng.random() < 0.08:
        return key_words(rng, scene, drawings), [0]
    phrases = [noun_phrase(rng, g, d) for g, d in zip(scene.groups, drawings)]
    body = main_part(rng, scene, [f"{{{i}}}" for i in range(len(phrases))])  # the phrases come last, so that their order shows
    order = [int(i) for i in re.findall(r"{(\d)}", body)]
    if rng.random() < 0.18:
        many = scene.groups[0].count > 1
        body = f"{rng.choice(MEDIUM[:-1] if many else MEDIUM)} {body.replace(' is ', ' ')}"
    around = [rng.choice(SETTING_NAMES[scene.setting])] * ("setting" in scene.told)
    around += [rng.choice(TIME_NAMES[scene.time])] * ("time" in scene.told)
    if rng.random() < 0.3:
        around.reverse()
    comma = "," if rng.random() < 0.3 else ""
    body = body.format(*phrases)
    if around and rng.random() < 0.2:
        return f"{around[0]}, {body}" + "".join(f"{comma} {a}" for a in around[1:]), order
    return body + "".join(f"{comma} {a}" for a in around), order

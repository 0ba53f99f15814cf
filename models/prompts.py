"""The prompts of the gallery."""

GALLERY = (
    "a red house under a yellow sun by the sea", "a blue cat in a meadow",
    "a white boat at sunset by the sea", "three red balloons above a city",
    "a green car on a street at night", "a small brown dog in the snow",
    "a big purple mushroom in the forest", "two pink flowers in a meadow",
    "a red and white lighthouse by the sea at night", "a yellow moon above a black castle at night",
    "an orange fish", "a red heart on a plain background",
    "a turquoise rocket above the desert", "a black bird to the left of a green tree",
    "four yellow stars at night", "a grey mountain in the snow",
    "a blue triangle to the right of a red circle", "an orange butterfly above a white flower",
    "a purple umbrella on the beach", "a green cactus in the desert at sunset",
    "a cat in front of a red house", "a yellow lamp below a blue star",
    "a red apple beside a green apple", "a white cloud over a brown house in the countryside",
)

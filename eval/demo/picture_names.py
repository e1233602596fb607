"""Names by which ``build_pictures.py`` finds candidates of each class; what is left over is cleaned by eye."""

import re

UNCLEAR_SETS = {"iconmind", "dinkie-icons", "streamline-block"}  # too schematic or coarse to name the object
OTHER_SUBJECTS = {"Logos", "Programming", "Flags / Maps"}  # categories of icon sets that are left out
# What an icon's name may carry beside the object: how it is drawn, and words that don't change what is seen.
STYLE_WORDS = re.compile(
    r"\d+|fill(ed)?|outlined?|bold|duo(tone)?|linear|line|thin|light|solid|round(ed)?|sharp|alt(ernate)?|flat|broken|"
    r"regular|twotone|tone|two|remix|glyph|[ofrs]|sm|lg|baseline|color|print|pop|variant|simple|one|three|four|five|"
    r"animal|nature|travel|on|small"
)
NOT_THESE = re.compile(r"police-car-light|hot_dog|corn_dog|no_dogs")  # families of names that only sound like a class
CLASSES = {  # class -> names of icons, words in openclipart's file names, Quick, Draw! categories
    "airplane": (
        r"((air|aero)?plane|aircraft|jet|jet-plane|airport-plane|transportation-plane)"
        r"(-(departure|arrival|take-?off|land|landing|in-flight|inflight|fly|flight|side|up|right|tilt|engines|mode|"
        r"enabled|helix|private))?|(flight|local-airport)(-(land|landing|take-?off|inflight))?",
        r"plane|aircraft|jet|aereo|aeroplano|boeing|cessna|concorde|biplane|glider",
        ["airplane"],
    ),
    "bird": (
        r"(barn-|black-|kiwi-|rubber-|baby-|front-facing-baby-)?(bird|owl|duck|chick)|eagle|parrot|dove|sparrow|"
        r"penguin|rooster|chicken|swan|flamingo|goose|canadian-goose|crow|crow-dive|toucan|peacock|seagull|raven|"
        r"hummingbird|pigeon|ostrich|falcon|hawk|animal-chicken|finch|hen",
        r"bird|duck|eagle|owl|penguin|parrot|dove|rooster|chicken|hen|crow|gull|seagull|swan|puffin|a?c?quila|"
        r"cign[oi]|gabbiano|gallo|gufo|pollo|uccello|flamand|cormorant",
        ["bird"],
    ),
    "car": (
        r"(oncoming-|police-|racing-|race-|sports?-|electric-|oncoming-police-)?(car|automobile|taxi)|sedan|suv|cab|"
        r"sport-utility-vehicle|car-(hatchback|sports|estate|side|front|retro|profile|suv|sedan|convertible|back|taxi|"
        r"limousine|pickup)|directions-car|local-taxi|city-car|hatchback|convertible",
        r"car|automobile|taxi|sedan|cabrio|beetle|ferrari|porsche|suv|convertible|racecar|car\d+",
        ["car", "police car"],
    ),
    "cup": (
        r"cup|mug|coffee|tea|hot-beverage|teacup|tea-?cup|coffee-?(cup|mug)|(coffee|tea)-cup-hot|cup-hot|mug-hot|"
        r"mug-saucer|mug-tea|mug-coffee|cup-tea|teacup-without-handle|coffee-cup-hot|local-cafe|cafe|cup-of-tea|"
        r"coffee-takeaway-cup|coffee-paper-glass|cup-saucer|coffee-hot|drink-coffee|"
        r"icons8-cup|free-breakfast|tea-drink|thermos-cup|food-coffee|food-drink-coffee",
        r"cup|mug|teacup|cuppa|tazza|kubek|coffee|tazzina",
        ["cup", "coffee cup", "mug"],
    ),
    "dog": (
        r"dog|dog-(face|head|side|body|service)|(guide|service|sitting|jumping|sniffing|balloon|pet-animals)-dog|"
        r"poodle|puppy|hound|basset-hound-head|labrador-head|jack-russell|dog2|corgi|dachshund",
        r"dog|dogs|puppy|hound|terrier|poodle|beagle|bulldog|cane|bobi|lab",
        ["dog"],
    ),
    "flower": (
        r"(potted-|lotus-|sun-|dandelion-|pollen-|wilted-)?flower\d*|sunflower|tulip|rose|hibiscus|"
        r"(cherry-)?blossom|daisy|lotus|poppy|bouquet|flower-(tulip|lotus|poppy|rose|rose-single|stem|bud|pot)|shut-rose|"
        r"local-florist|potted-flower-tulip|filter-vintage",
        r"flowers?|flower\d|rose|tulips?|daisy|sunflower|blossom|daffodil|magnolia|sakura|geranium|fiore|fiori|lotas|"
        r"orchid|lily|bouquet|full_bloom",
        ["flower"],
    ),
    "lamp": (
        r"(desk|floor|table|bedside|ceiling|pendant|reading|street|wall|office-desk|hanging|coach|dine|oil|small)-lamp|"
        r"lamp(-(desk|floor|ceiling|pendant|table|bedside|wall|wall-up|wall-down|round|street))?|light-bulb|bulb|idea|"
        r"lightbulb-(\d+|flat|filament|shine)|light-bulb-shine|desk-lamp-round|emoji-objects|lantern|"
        r"creativity-idea-bulb|interface-essential-light-bulb",
        r"lamp|bulb|lantern|light_bulb|lightbulb|lampada|cfbulb|streetlight",
        ["floor lamp", "light bulb"],
    ),
    "person": (
        r"person(-(standing|walking|walk|simple|dress|running|run|arms-up|raised-hand|body|half-dress))?|standing|"
        r"(old|older)-(man|woman|person)|man|woman|boy|girl|child|adult|human(-(male|female|handsup|greeting|arms-up|"
        r"arms-down|child))?|man-(standing|walking|dancing|running)|woman-(standing|walking|dancing|running)|walking|"
        r"(man|woman)-(artist|farmer|cook|teacher|student|beard|bald|curly-hair|red-hair|blonde-hair|firefighter|"
        r"office-worker|pilot|police-officer|construction-worker|health-worker|white-hair)|accessibility-new|man-\d+|"
        r"woman-\d+|urban-woman|student-woman|telemarketer-woman|single-woman|walk|hiking|man-arm-raises",
        r"man|woman|boy|girl|person|lady|guy|child|kid|businessman|donna|uomo|bambin[oa]|ragazz[oa]|gentleman|face",
        ["yoga", "face"],
    ),
    "tree": (
        r"(deciduous-|evergreen-|palm-|christmas-|pine-|coconut-|leafless-|african-|fir-|oak-|birch-|beech-)?tree|"
        r"tree-(deciduous|evergreen|palm|pine|fir|christmas)|evergreen|oak|pine|ecology-tree|pollen-tree|coniferous|deciduous",
        r"tree\d*|trees|palm|palmtree|pine|oak|fir|albero|arbre|abete",
        ["tree", "palm tree"],
    ),
    "umbrella": (
        r"(open-|closed-|beach-|rain-)?umbrella(-(with-rain-drops|on-ground|closed|open|beach|rain|wind|sun))?|"
        r"parasol|beach-with-umbrella|beach-access|beach-parasol",
        r"umbrella|umbrellas|parasol",
        ["umbrella"],
    ),
    "camera": (
        r"(photo-?|digital-|instant-|polaroid-|image-|compact-|old-time-|vintage-|micro-slr-|modern-)?camera(-(with-flash|"
        r"photo|dslr|retro|flash|front|image|polaroid|tripod|mode-photo|go-pro|slr|compact|enhance))?|photo-camera|"
        r"vintage-camera-polaroid|modern-camera-go-pro|camera-alt",
        r"camera|fotografica",
        ["camera"],
    ),
}

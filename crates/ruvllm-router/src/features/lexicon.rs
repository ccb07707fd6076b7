//! Words that tell something about a query, by the feature they count for.

use std::collections::HashMap;
use std::sync::OnceLock;

use foldhash::fast::FixedState;

/// Features that count words: name, what it is, and the words in lower case. A word may stand in several.
pub(super) const LEXICONS: [(&str, &str, &str); N_LEXICONS] = [
    ("ask_what", "asks what", "what whats was quoi que qué che wat"),
    ("ask_which", "asks which", "which welche welcher welches quel quelle cuál quale"),
    ("ask_who", "asks who", "who whom whose wer wem wessen qui quién chi"),
    ("ask_when", "asks when", "when wann quand cuándo quando"),
    ("ask_where", "asks where", "where wo wohin où dónde dove"),
    ("ask_why", "asks why", "why warum weshalb wieso pourquoi perché"),
    ("ask_how", "asks how", "how wie comment cómo come"),
    (
        "ask_yes_no",
        "words that open a yes-no question",
        "is are was were does do did can could should would has have may will",
    ),
    ("ask_polite", "asks politely", "please kindly could would bitte danke thanks thank svp gracias"),
    (
        "task_write",
        "asks for something to be written or made",
        "write create implement build make generate add code develop produce compose program schreibe",
    ),
    (
        "task_explain",
        "asks for an explanation",
        "explain describe clarify elaborate understand meaning mean means interpret erkläre",
    ),
    (
        "task_summarise",
        "asks for a summary",
        "summarise summarize summary tldr condense shorten brief abstract overview key",
    ),
    (
        "task_translate",
        "asks for a translation",
        "translate translation übersetze traduire traducir english german french spanish italian chinese japanese",
    ),
    ("task_list", "asks for a list", "list enumerate name give examples ideas suggestions options top steps"),
    (
        "task_compare",
        "asks for a comparison",
        "compare comparison versus vs difference differences better advantages disadvantages pros cons trade tradeoffs between",
    ),
    (
        "task_fix",
        "asks to find or mend a fault",
        "fix debug bug bugs error fails failed failing crash crashes broken wrong why issue problem solve reproduce trace",
    ),
    (
        "task_review",
        "asks for a judgement of something made",
        "review check critique feedback comment comments look opinion approve merge diff pull patch pr read",
    ),
    (
        "task_test",
        "asks for tests",
        "test tests testing unit coverage pytest jest assert cases case edge fixtures regression spec",
    ),
    (
        "task_design",
        "asks for a design",
        "design architecture architect structure components module modules system layers pattern service services scale boundaries model",
    ),
    (
        "task_refactor",
        "asks to restructure",
        "refactor split rename clean tidy restructure simplify extract replace duplicate readable move separate legacy merge",
    ),
    (
        "task_optimise",
        "asks to make something cheaper",
        "optimise optimize faster slow speed latency memory performance reduce profile throughput cache cut bottleneck",
    ),
    (
        "task_operate",
        "asks to run or deploy something",
        "deploy docker kubernetes terraform ci pipeline server cluster monitoring alert helm ansible nginx staging production release backup",
    ),
    (
        "task_document",
        "asks for documentation",
        "document documentation docs readme guide manual tutorial changelog comments docstrings handbook wiki reference",
    ),
    (
        "task_plan",
        "asks for a plan",
        "plan roadmap milestones schedule prioritise prioritize estimate timeline sprint backlog phases tasks steps deadline order quarter",
    ),
    (
        "task_prove",
        "asks for a proof",
        "prove proof show derive theorem lemma corollary contradiction induction hence therefore",
    ),
    (
        "task_calculate",
        "asks to calculate",
        "calculate compute find solve evaluate simplify determine total sum average how many much left each per",
    ),
    (
        "task_classify",
        "asks to classify or extract",
        "classify extract label categorize categorise sentiment identify detect recognise tag json",
    ),
    (
        "task_create",
        "asks for fiction or verse",
        "story poem haiku song lyrics character novel fiction dialogue joke essay imagine rhyme",
    ),
    (
        "task_rewrite",
        "asks to rewrite a text",
        "rewrite rephrase paraphrase edit improve proofread correct grammar tone formal shorter polish",
    ),
    (
        "about_code",
        "programming words",
        "function class method variable loop array string python rust java javascript typescript kotlin swift golang compiler api async import return struct enum null pointer library framework def fn const let void int",
    ),
    (
        "about_shell",
        "command line words",
        "bash shell command terminal script linux sudo grep sed awk git ssh cron file directory folder path npm pip cargo make",
    ),
    (
        "about_sql",
        "database words",
        "sql select from where join table tables query index database postgres mysql sqlite column columns row rows schema migration",
    ),
    (
        "about_web",
        "words of the web",
        "html css http https url browser page website react vue dom endpoint request response rest json cookie header frontend",
    ),
    (
        "about_errors",
        "words of error messages",
        "error exception traceback stack panic segfault undefined null nullpointerexception typeerror failed cannot errno exit warning",
    ),
    (
        "about_maths",
        "mathematical words",
        "equation integral derivative matrix vector polynomial prime integer probability triangle angle function real complex theorem ring group field set graph root degree sequence modulo",
    ),
    (
        "about_arithmetic",
        "words of arithmetic in stories",
        "total each per more less twice half third many much cost costs price dollars cents hours minutes days weeks years miles pounds sold bought left remaining altogether percent times",
    ),
    (
        "about_units",
        "units and money",
        "km kg cm mm meter meters metre feet inches mph seconds second minute hour ms gb mb kb usd eur dollar euro volts watts joules newton degrees celsius",
    ),
    (
        "about_science",
        "words of natural science",
        "energy force mass velocity atom molecule electron reaction acid base cell protein dna species temperature pressure gas wave light quantum orbit evolution",
    ),
    (
        "about_medicine",
        "medical words",
        "patient disease symptoms treatment drug dose blood heart cancer infection clinical diagnosis vitamin diet muscle surgery",
    ),
    (
        "about_law",
        "words of law",
        "law legal court contract liability rights treaty statute constitution defendant plaintiff crime jurisdiction state convention",
    ),
    (
        "about_society",
        "words of history and society",
        "war century king empire revolution government president political party religion church society culture population country moral",
    ),
    (
        "about_business",
        "words of business",
        "market customers company revenue cost costs profit tax budget invoice audit sales price demand supply product firm asset income bond stock",
    ),
    (
        "about_security",
        "words of security",
        "security attack attacker vulnerability encryption threat password token tls key keys permission secret malware phishing xss injection firewall exploit risk",
    ),
    (
        "about_learning",
        "words of machine learning",
        "training neural network dataset loss gradient embedding transformer llm gpu inference classifier regression accuracy tokens learning",
    ),
    (
        "language_en",
        "English function words",
        "the of and to in is that for it on with as at by this be are or an from which not",
    ),
    (
        "language_de",
        "German function words",
        "der die das und ist nicht ein eine mit für auf den von zu im dem sich wie ich wir",
    ),
    (
        "language_fr",
        "French function words",
        "le la les des est une dans pour pas que qui sur avec au du et un ce je nous",
    ),
    ("language_es", "Spanish function words", "el la los las de es una en para por que con del un y se no lo como más"),
    (
        "language_it",
        "Italian function words",
        "il la di che è una per non con del della sono un e gli nel alla come più",
    ),
    ("language_pt", "Portuguese function words", "o a os as de é uma em para por que com do da um e não se no na"),
    (
        "language_nl",
        "Dutch function words",
        "de het een en van is dat niet op te voor met zijn aan er om ook als wij ik",
    ),
    ("language_pl", "Polish function words", "i w na nie jest się z do to że o jak po dla od czy przez co ale"),
];

/// How many features count words.
pub(super) const N_LEXICONS: usize = 52;

/// Returns a bit for every lexicon a word (in lower case) stands in.
pub(super) fn lexicons_of(word: &str) -> u64 {
    static WORDS: OnceLock<HashMap<&str, u64, FixedState>> = OnceLock::new();
    let words = WORDS.get_or_init(|| {
        let mut words = HashMap::with_hasher(FixedState::default());
        for (bit, (_, _, list)) in LEXICONS.iter().enumerate() {
            for word in list.split(' ') {
                *words.entry(word).or_default() |= 1 << bit;
            }
        }
        words
    });
    words.get(word).copied().unwrap_or(0)
}

package rule

// Schema is the only version of the rule file format.
const Schema = 1

// document is a rule file as it is written. Every member is checked by compile;
// a member that is not listed here is refused.
type document struct {
	Schema   int          `json:"schema"`
	Agent    string       `json:"agent"`
	About    string       `json:"about"`
	Versions versionsJSON `json:"versions"`
	Size     sizeJSON     `json:"size"`
	Composer composerJSON `json:"composer"`
	Footer   []footerJSON `json:"footer"`
	Busy     busyJSON     `json:"busy"`
	Popups   popupsJSON   `json:"popups"`
	Notes    []rowJSON    `json:"notes"`
	Dialogs  []dialogJSON `json:"dialogs"`
	Pages    []pageJSON   `json:"pages"`
	Panels   []rowJSON    `json:"panels"` // rows with which a view begins that hides the composer
	Unnamed  []rowJSON    `json:"unnamed"`
	Exited   exitedJSON   `json:"exited"`
	Keys     keysJSON     `json:"keys"`
	Input    inputJSON    `json:"input"`
	Records  recordsJSON  `json:"records"`
	Native   *nativeJSON  `json:"native"`
}

// versionsJSON says which versions the file was made from and from which one on
// it may be tried.
type versionsJSON struct {
	Tested []string `json:"tested"` // exact versions whose fixtures are in testdata
	Oldest string   `json:"oldest"` // oldest version that the file may be used for
}

// sizeJSON is the smallest pane in which the rules prove anything.
type sizeJSON struct {
	Columns int `json:"columns"`
	Rows    int `json:"rows"`
}

// styleJSON tests how cells are drawn; what is left out does not matter. Colours
// are "default", "0".."255", "#rrggbb", or one of these with "!" in front.
type styleJSON struct {
	Bold      *bool  `json:"bold"`
	Dim       *bool  `json:"dim"`
	Italic    *bool  `json:"italic"`
	Underline *bool  `json:"underline"`
	Reverse   *bool  `json:"reverse"`
	FG        string `json:"fg"`
	BG        string `json:"bg"`
}

// rowJSON recognises one whole row: Text is an RE2 expression over the row
// without its blanks at the end; Style names groups of it ("row" is the whole
// row) whose every inked cell must be drawn so.
type rowJSON struct {
	Name  string               `json:"name"`
	Text  string               `json:"text"`
	Style map[string]styleJSON `json:"style"`
	Full  bool                 `json:"full"` // the row reaches the right edge of the pane
}

type composerJSON struct {
	Column      int          `json:"column"` // of the marker
	Indent      int          `json:"indent"` // of the text, and of further rows of a draft
	Gap         string       `json:"gap"`    // the one character between marker and text; "" for blanks
	Frame       *rowJSON     `json:"frame"`  // stands directly above the composer and directly below its draft
	Cursor      *styleJSON   `json:"cursor"` // of the cell under the cursor, where the agent draws its own: the first of a placeholder
	Markers     []markerJSON `json:"markers"`
	Placeholder styleJSON    `json:"placeholder"` // of every inked cell of a placeholder (but the one under the cursor)
	Pasted      rowJSON      `json:"pasted"`      // a draft that stands for a large paste; group n, if any, counts characters
	Headroom    int          `json:"headroom"`    // least rows above an empty composer (and blank below) that leave no busy row out
	Tall        int          `json:"tall"`        // share of the pane, in percent, from which on a draft hides the footer; 0 if it never does
	Scroll      scrollJSON   `json:"scroll"`
}

// scrollJSON tells that the composer shows only the end of a longer draft: by a
// mark in the last column of its first row, because it fills the pane from row
// Top (counted from 1) to the footer, or because Frame stands above it in place
// of the composer's own: then the marker is out of sight, too.
type scrollJSON struct {
	Mark  string    `json:"mark"`
	Style styleJSON `json:"style"`
	Top   int       `json:"top"`
	Frame *rowJSON  `json:"frame"`
}

type markerJSON struct {
	Name  string    `json:"name"`
	Text  string    `json:"text"` // one character
	Style styleJSON `json:"style"`
	Held  string    `json:"held"` // why Enter would do something else than send; "" for the ordinary composer
	Busy  bool      `json:"busy"` // drawn so only while a turn is running
}

// footerJSON is a row that may stand below the composer.
type footerJSON struct {
	Row   rowJSON `json:"row"`
	Means string  `json:"means"` // ready, hint, busy, starting, blocked
	Held  string  `json:"held"`  // with blocked
	// WithEmpty says that the row is always there below an empty composer.
	WithEmpty bool `json:"with_empty"`
	// Wraps says that the row is the rest of a ready row that the pane is too
	// narrow for: it counts only directly below one, and only if its first word
	// would not have fitted there.
	Wraps bool `json:"wraps"`
	// Above says that anything may stand in the row (a user's own status line), as
	// long as a row that is ready, busy or blocked stands below it.
	Above bool `json:"above"`
	// Draft says that a ready row is one only while the composer shows all of a
	// draft.
	Draft bool `json:"draft"`
	// Room is the number of columns that a ready row leaves free for what a busy
	// one adds: with less of them, and no marker in sight, it proves nothing.
	Room int `json:"room"`
}

type busyJSON struct {
	Window   int       `json:"window"`   // rows above the composer that are looked at
	Rows     []rowJSON `json:"rows"`     // prove that a turn is running
	Suspects []rowJSON `json:"suspects"` // prove nothing, but forbid to call the pane idle
}

type popupsJSON struct {
	Window int         `json:"window"` // rows above or below the composer that are looked at
	Rows   []popupJSON `json:"rows"`
}

type popupJSON struct {
	Row   rowJSON `json:"row"`
	Where string  `json:"where"` // above, below
}

// dialogJSON is a region that takes the composer's place.
type dialogJSON struct {
	Name     string        `json:"name"`
	Like     string        `json:"like"`     // a dialog that gives every member not set here but name, body, cut and extract
	State    string        `json:"state"`    // approval, question, blocked
	Kind     string        `json:"kind"`     // with approval and question
	Top      *rowJSON      `json:"top"`      // stands directly above the title, where a blank row stands otherwise
	Title    *rowJSON      `json:"title"`    // may be missing with blocked, or where More proves that it is out of sight
	Question *rowJSON      `json:"question"` // the last row above the options
	Footer   *rowJSON      `json:"footer"`   // the last row; where it is missing the options are last
	Above    []rowJSON     `json:"above"`    // rows of a wrapped footer that may stand directly above its last one
	Body     []rowJSON     `json:"body"`     // each must stand between title and options
	Cut      *rowJSON      `json:"cut"`      // stands for rows that the pane has no room for
	Options  *optionsJSON  `json:"options"`
	Extract  []extractJSON `json:"extract"`
	Approve  *answerJSON   `json:"approve"` // may be missing: then nothing is ever allowed by a key
	Reject   *answerJSON   `json:"reject"`
}

// optionsJSON describes options. Both rows have the group label. With a group n
// they are numbered from 1, all or none of one dialog's; options without numbers
// begin below the question.
type optionsJSON struct {
	Selected rowJSON  `json:"selected"`
	Other    rowJSON  `json:"other"`
	Indent   int      `json:"indent"` // least indent of a further row of one option
	Min      int      `json:"min"`
	End      string   `json:"end"`     // RE2 over the label of the last option; a dialog without a footer needs it
	Between  *rowJSON `json:"between"` // may stand between two options
	More     *rowJSON `json:"more"`    // below the options: the pane has no room for all rows of the dialog
}

// extractJSON takes a text out of the rows between title and options: from the
// first row that Start matches on, or, with Each, the rows between After and Until
// (with Start, from the taken text on that it matches, up to one that is Stop).
type extractJSON struct {
	To       string    `json:"to"`    // command, reason; the first of several that are found counts
	Start    string    `json:"start"` // RE2 over one row
	Form     string    `json:"form"`  // template over the groups of Start: {group} or {snake:group}; "" means "{value}"
	Rows     string    `json:"rows"`  // one, paragraph, rest
	Indent   int       `json:"indent"`
	After    *rowJSON  `json:"after"` // the text begins below it; without it, below the title
	Last     bool      `json:"last"`  // After is the last such row, else the first
	Until    *rowJSON  `json:"until"` // the text ends above it; without it, above the question or the options
	Each     []rowJSON `json:"each"`  // every row must be one of these; its group value is taken, if it has one
	Stop     string    `json:"stop"`  // RE2 over one taken text
	Join     string    `json:"join"`
	Required bool      `json:"required"`
}

// answerJSON is how one option is chosen.
type answerJSON struct {
	Option   string   `json:"option"`   // RE2 over the label; exactly one option must match. A rejection may do without
	Selected bool     `json:"selected"` // the option must be the highlighted one
	Move     bool     `json:"move"`     // the highlight is first brought to the option, by Up or Down
	Keys     []string `json:"keys"`
}

type exitedJSON struct {
	Window int       `json:"window"` // inked rows at the end of the screen
	Rows   []rowJSON `json:"rows"`   // all, in this order
}

type keysJSON struct {
	Submit    string   `json:"submit"`
	Interrupt string   `json:"interrupt"`
	Clear     []string `json:"clear"`
}

type inputJSON struct {
	InlineChars  int      `json:"inline_chars"`  // longest request that the composer shows
	RequestBytes int      `json:"request_bytes"` // longest request that is typed at all
	Refuse       []string `json:"refuse"`        // first characters that the agent takes for itself
	WrapPrefix   []string `json:"wrap_prefix"`   // first characters of a last word that would open a popup
	WrapWord     string   `json:"wrap_word"`     // the word put after it
}

type recordsJSON struct {
	At      string     `json:"at"`      // member of the line with its time
	Ordinal string     `json:"ordinal"` // member of the line with its number
	Kinds   []kindJSON `json:"kinds"`   // the first that fits decides
}

type kindJSON struct {
	Name  string                `json:"name"`
	Kind  string                `json:"kind"`
	Where []testJSON            `json:"where"`
	Take  map[string]sourceJSON `json:"take"`
	Call  *callJSON             `json:"call"` // with kind call
}

type callJSON struct {
	Kind      string `json:"kind"`
	Escalated bool   `json:"escalated"`
	Asks      bool   `json:"asks"`
}

// testJSON is one condition on a line. Exactly one of Equals, Prefix and Is is set.
type testJSON struct {
	In     string `json:"in"` // pointer to a string that holds JSON; At is inside it
	At     string `json:"at"`
	Equals string `json:"equals"`
	Prefix string `json:"prefix"`
	Is     string `json:"is"` // present (and not null), absent (or null), true, false
}

// sourceJSON says where a field of a record comes from.
type sourceJSON struct {
	In       string       `json:"in"`
	At       string       `json:"at"`
	As       string       `json:"as"`    // text (default), id, json, unix, parts, lines
	Parts    *partsJSON   `json:"parts"` // with as parts
	Item     string       `json:"item"`  // with as lines: pointer inside each member of the array
	Cut      string       `json:"cut"`   // prefix to remove from a text
	Join     []sourceJSON `json:"join"`  // texts put together, instead of At
	With     string       `json:"with"`  // between them
	Required bool         `json:"required"`
}

// partsJSON picks the texts out of an array of typed parts.
type partsJSON struct {
	Where testJSON `json:"where"`
	Text  string   `json:"text"` // pointer inside a part
}

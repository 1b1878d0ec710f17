package terminal

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"drawbridge/shared/fault"
)

const (
	provider = "tmux"
	idPrefix = "terminal:v2:" + provider + ":"
	maxID    = 4096 // bytes
)

// Ident is what a terminal id names.
type Ident struct {
	Agent   string // "codex"
	Session string // session name, decoded
	Window  int
	Pane    int
	PID     int // of the agent process
}

// ID gives the terminal id (tools §2) of one agent process in one pane:
// terminal:v2:tmux:<agent>:<session>:<window>.<pane>:<pid>.
func ID(kind string, p Pane, agentPID int) string {
	return Ident{Agent: kind, Session: p.Session, Window: p.Window, Pane: p.Index, PID: agentPID}.String()
}

// String gives the id.
func (i Ident) String() string {
	return fmt.Sprintf("%s%s:%s:%d.%d:%d", idPrefix, i.Agent, escape(i.Session), i.Window, i.Pane, i.PID)
}

// ParseID reads an id of exactly the form of ID: two different texts never name
// the same pane. Another kind of id is wrong_id_kind; a terminal id of another
// version or provider, or one that ID never makes, is terminal_not_found, since
// no pane can have it.
func ParseID(id string) (Ident, error) {
	if !strings.HasPrefix(id, "terminal:") {
		return Ident{}, fault.New(fault.WrongIDKind, "reading a terminal id: it does not begin with \"terminal:\"").
			WithHint("use the id of a row of list").Safe()
	}
	no := func(why string) (Ident, error) {
		return Ident{}, fault.New(fault.TerminalNotFound, "reading a terminal id: %s", why).
			WithHint("call list and use the id as it stands there").Safe()
	}
	rest, ok := strings.CutPrefix(id, idPrefix)
	if !ok || len(id) > maxID {
		return no("not one of this version's ids")
	}
	f := strings.Split(rest, ":")
	if len(f) != 4 {
		return no("it has the wrong number of parts")
	}
	for _, c := range []byte(f[0]) {
		if c < 'a' || c > 'z' {
			return no("the agent is not a name")
		}
	}
	session, err := unescape(f[1])
	window, index, dot := strings.Cut(f[2], ".")
	w, err1 := number(window)
	p, err2 := number(index)
	pid, err3 := number(f[3])
	if err != nil || err1 != nil || err2 != nil || err3 != nil || !dot || f[0] == "" || session == "" || pid == 0 {
		return no("a part of it is malformed")
	}
	i := Ident{Agent: f[0], Session: session, Window: w, Pane: p, PID: pid}
	if i.String() != id {
		return no("it is not in canonical form")
	}
	return i, nil
}

// ShortRef gives "@" and ten hex digits for people. It is never an argument.
func ShortRef(id string) string {
	sum := sha256.Sum256([]byte(id))
	return "@" + hex.EncodeToString(sum[:5])
}

// escape percent-encodes every byte outside [A-Za-z0-9._-].
func escape(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		if plain(c) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

func unescape(s string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case plain(s[i]):
			b.WriteByte(s[i])
		case s[i] == '%' && i+2 < len(s):
			n, err := strconv.ParseUint(s[i+1:i+3], 16, 8)
			if err != nil {
				return "", err
			}
			b.WriteByte(byte(n))
			i += 2
		default:
			return "", fmt.Errorf("byte %d is neither plain nor encoded", i)
		}
	}
	return b.String(), nil
}

func plain(c byte) bool {
	return c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-'
}

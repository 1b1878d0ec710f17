package egress

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/redact"
)

const maxRows = 256 // of a record; the rest is counted together

// Decision is what became of a connection.
type Decision string

// The decisions. A cut connection is counted as allowed before.
const (
	Allowed Decision = "allowed"
	Denied  Decision = "denied"
	Cut     Decision = "cut"
)

// Row counts the connections to one place with one outcome.
type Row struct {
	Host      string    `json:"host"`
	Port      uint16    `json:"port"` // 0 when the target could not be read
	Decision  Decision  `json:"decision"`
	Code      Code      `json:"code,omitempty"`
	Count     int64     `json:"count"`
	BytesUp   int64     `json:"bytesUp"`
	BytesDown int64     `json:"bytesDown"`
	First     time.Time `json:"first"`
	Last      time.Time `json:"last"`
}

// Summary is what evidence says of an attempt's way out.
type Summary struct {
	Profile     string      `json:"profile"`
	Enforcement Enforcement `json:"enforcement"`
	Allowed     []Row       `json:"allowed"`
	Denied      []Row       `json:"denied"` // and cut
	Overflow    int64       `json:"overflow"`
	BytesUp     int64       `json:"bytesUp"`
	BytesDown   int64       `json:"bytesDown"`
}

// NoEgress is the summary of an attempt without a proxy.
func NoEgress(e Enforcement) Summary {
	return Summary{Profile: NoProfile, Enforcement: e, Allowed: []Row{}, Denied: []Row{}}
}

type rowKey struct {
	host     string
	port     uint16
	decision Decision
	code     Code
}

// record is a Summary while it grows.
type record struct {
	redactor *redact.Redactor
	now      func() time.Time

	mu       sync.Mutex
	rows     map[rowKey]*Row
	overflow Row
	up, down int64
}

// count notes one connection and gives its row, for the bytes.
func (r *record) count(host string, port uint16, d Decision, code Code) *Row {
	if d == Denied {
		host = r.clean(host)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	key := rowKey{host, port, d, code}
	row := r.rows[key]
	switch {
	case row != nil:
	case len(r.rows) >= maxRows:
		row = &r.overflow
	default:
		if r.rows == nil {
			r.rows = map[rowKey]*Row{}
		}
		row = &Row{Host: host, Port: port, Decision: d, Code: code, First: r.now()}
		r.rows[key] = row
	}
	row.Count++
	row.Last = r.now()
	return row
}

// clean makes a name that a daemon sent one that may be kept.
func (r *record) clean(host string) string {
	host = r.redactor.Text(fault.CleanLine(host)) // before the cut: a cut token is not recognised
	if len(host) > maxHost {
		host = strings.ToValidUTF8(host[:maxHost], "")
	}
	return host
}

// grant takes n bytes of a direction's limit and counts them for a row; it gives
// how many of them there were.
func (r *record) grant(row *Row, l Limits, up bool, n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	total, counted, most := &r.down, &row.BytesDown, l.BytesDown
	if up {
		total, counted, most = &r.up, &row.BytesUp, l.BytesUp
	}
	n = int(min(int64(n), most-*total))
	*total += int64(n)
	*counted += int64(n)
	row.Last = r.now()
	return n
}

// unsent gives back bytes that were granted and did not leave.
func (r *record) unsent(row *Row, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.up -= int64(n)
	row.BytesUp -= int64(n)
}

// spent reports whether a direction has no bytes left.
func (r *record) spent(l Limits) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.up >= l.BytesUp || r.down >= l.BytesDown
}

func (r *record) summary() Summary {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := NoEgress("")
	s.Overflow, s.BytesUp, s.BytesDown = r.overflow.Count, r.up, r.down
	for _, row := range r.rows {
		if row.Decision == Allowed {
			s.Allowed = append(s.Allowed, *row)
		} else {
			s.Denied = append(s.Denied, *row)
		}
	}
	for _, rows := range [][]Row{s.Allowed, s.Denied} {
		slices.SortFunc(rows, func(a, b Row) int {
			return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Decision, b.Decision), cmp.Compare(a.Code, b.Code))
		})
	}
	return s
}

package control

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"strconv"
	"strings"

	"drawbridge/shared/fault"
)

// maxEvent bounds one event of a stream of logs.
const maxEvent = 4 << 20

// readOutput reads a stream of logs to its last event.
func readOutput(r io.Reader, id string, emit func(Output) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxEvent)
	name := ""
	for lines.Scan() {
		line := lines.Text()
		if value, ok := strings.CutPrefix(line, "event: "); ok {
			name = value
			continue
		}
		data, ok := strings.CutPrefix(line, "data: ")
		switch {
		case !ok:
		case name == eventEnd:
			return nil
		case name == eventOutput:
			var o Output
			if err := json.Unmarshal([]byte(data), &o); err != nil {
				return fault.New(fault.StationdUnavailable, "read the log of station %s: %w", id, err)
			}
			if err := emit(o); err != nil {
				return err
			}
		}
	}
	err := lines.Err()
	if err == nil {
		err = errors.New("stationd ended")
	}
	return fault.New(fault.StationdUnavailable, "read the log of station %s: it broke off: %w", id, err)
}

// query makes a query of names and values; those without a value are left out.
func query(pairs ...string) url.Values {
	q := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			q.Set(pairs[i], pairs[i+1])
		}
	}
	return q
}

// number is an attempt in a query, "" for the newest one.
func number(attempt int64) string {
	if attempt == 0 {
		return ""
	}
	return strconv.FormatInt(attempt, 10)
}

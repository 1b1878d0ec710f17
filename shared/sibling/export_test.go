package sibling

import "log/slog"

// Forward logs one line of a sibling as its output does.
func Forward(name string, log *slog.Logger, line string) {
	(&output{name: name, log: log}).forward(line)
}

// ParseNotify gives what one datagram says.
func ParseNotify(text string) (ready, standby bool, status string) {
	m := parseMessage(text)
	return m.Ready, m.Standby, m.Status
}

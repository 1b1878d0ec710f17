package siblings

// ParseNotify gives what one datagram says.
func ParseNotify(text string) (ready, standby bool, status string) {
	m := parseMessage(text)
	return m.ready, m.standby, m.status
}

package redact

import "bytes"

// sloppyURL bounds how far an @ is looked for behind the first slash of a URL.
const sloppyURL = 1024

// authority hides the user information of a URL whose authority begins at i.
func (s *scan) authority(i int) int {
	end := i + until(s.buf[i:], "/?# \t\r\n\"'<>\\")
	at := bytes.LastIndexByte(s.buf[i:end], '@')
	if at < 0 {
		// A password may hold a slash that nobody escaped.
		_, port, colon := bytes.Cut(s.buf[i:end], []byte(":"))
		if !colon || run(port, 0, digits) == len(port) {
			return i
		}
		whole := i + until(s.buf[i:min(len(s.buf), i+sloppyURL)], " \t\r\n\"'<>")
		if at = bytes.LastIndexByte(s.buf[i:whole], '@'); at < 0 {
			return i
		}
	}
	user := s.buf[i : i+at]
	if len(user) > 0 && string(user) != "git" {
		s.hide(i, i, i+at)
	}
	return i + at
}

// query hides a query that is a signature as a whole.
func (s *scan) query(i int) int {
	i++
	if i < s.queryEnd || i == len(s.buf) || !wordly[s.buf[i]] {
		return i
	}
	end := i + until(s.buf[i:], " \t\r\n\"'<>#")
	s.queryEnd = end
	var cloud []span
	for at := i; at < end; {
		stop := at + until(s.buf[at:end], "&;?")
		name, _, ok := bytes.Cut(s.buf[at:stop], []byte("="))
		if ok && signedQuery(name) {
			s.hide(i, i, end)
			return end
		}
		if from := at + len(name) + 1; ok && from < stop && cloudQuery(name) {
			cloud = append(cloud, span{start: from, end: stop, lead: at})
		}
		at = stop + 1
	}
	s.spans = append(s.spans, cloud...)
	return i
}

package launch

import (
	"net/url"
	"slices"
	"strings"

	"drawbridge/shared/fault"
	"drawbridge/shared/redact"
)

// secretFlags are flags whose value is a secret (station §6.3), folded.
var secretFlags = map[string]bool{
	"token": true, "apikey": true, "password": true, "passwd": true, "secret": true, "auth": true,
	"accesskey": true, "privatekey": true, "credential": true, "credentials": true, "bearer": true,
}

// placeholders are no values.
var placeholders = strings.NewReplacer("{port}", "", "{host}", "", "{workdir}", "")

// Known collects the values that no argument may hold: those of variables with a
// secret's name, of stationd's environment and of the spec, and further ones.
// Tickets and principals' secrets are known by their form.
func Known(environ []string, s Spec, more ...redact.Secret) []redact.Secret {
	out := slices.Clip(more)
	add := func(name, value string) {
		if secretName(name) && len(value) >= redact.MinKnown {
			out = append(out, redact.NewSecret(value))
		}
	}
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		add(name, value)
	}
	for name, value := range s.Env.Set {
		add(name, value)
	}
	return out
}

// CheckArguments refuses a command with a secret in it. The error names the
// argument's index, never what it is.
func CheckArguments(c Command, known []redact.Secret) error {
	finder := redact.New(redact.Options{})
	for _, k := range known {
		finder.Learn(k.Reveal())
	}
	words := c.Words()
	if i := secretIn(finder, words); i >= 0 {
		return secretArgument(i)
	}
	if c.Shell != "" {
		// As a shell reads it: split, and with quotes and escapes gone.
		split := strings.FieldsFunc(c.Shell, func(r rune) bool { return strings.ContainsRune(" \t\r\n;&|()<>`$\"'{}=", r) })
		unquoted := strings.NewReplacer(`"`, "", `'`, "", `\`, "").Replace(c.Shell)
		spaced := strings.FieldsFunc(c.Shell, func(r rune) bool { return strings.ContainsRune(" \t\r\n;&|()<>`\"'", r) })
		for _, list := range [][]string{split, spaced, {unquoted}, strings.Fields(unquoted)} {
			if secretIn(finder, list) >= 0 {
				return secretArgument(0)
			}
		}
	}
	return nil
}

func secretArgument(index int) error {
	return fault.New(fault.SecretInArguments, "check the command: argument %d holds a secret", index).
		WithHint("give the daemon its credential with daemonAuth; a token that is only a flag is left out, the gate is the only way in").
		With("index", index)
}

// secretIn gives the index of the first word that holds a secret, -1 for none.
func secretIn(finder *redact.Redactor, words []string) int {
	for i, w := range words {
		text := placeholders.Replace(w)
		if finder.Finds([]byte(text)) {
			return i
		}
		if plain, err := url.PathUnescape(text); err == nil && plain != text && finder.Finds([]byte(plain)) {
			return i
		}
		name, value, joined := strings.Cut(w, "=")
		switch {
		case !secretFlag(name):
		case joined && placeholders.Replace(value) != "":
			return i
		case !joined && i+1 < len(words) && placeholders.Replace(words[i+1]) != "":
			return i + 1
		}
	}
	return -1
}

// secretFlag reports whether a word is one of the flags, with one dash or two.
func secretFlag(word string) bool {
	name := strings.TrimLeft(word, "-")
	if name == word {
		return false
	}
	return secretFlags[strings.ToLower(strings.NewReplacer("-", "", "_", "").Replace(name))]
}

package redact_test

import (
	"strings"
	"testing"

	"drawbridge/shared/redact"
)

// What the redactor hides passes the last look, and what it was given does not: the
// forms of tokens are known twice, independently.
func TestVerify(t *testing.T) {
	r := sample(redact.Options{})
	for _, tc := range cases {
		if err := r.Verify([]byte(r.Text(tc.in))); err != nil {
			t.Errorf("%s: redacted, and yet: %v", tc.name, err)
		}
	}
	for what, secret := range map[string]string{
		"an sk- key": skKey, "a GitHub token": ghKey, "an AWS key": awsKey, "an npm token": npmKey, "a JWT": jwt, "a private key": pemKey,
		"a ticket": "dbt" + "_" + strings.Repeat("aB3_-", 9)[:43], "a principal's secret": "dbp" + "_" + strings.Repeat("Z", 43),
		"a Slack token": "xox" + "b-1234567890-abc", "a credential": "Bearer: abcdefghijklmnop", "a known value": known,
		"user information": "https://joe:pw@host/x", "<work>": "/home/joe/work/a", "<home>": `"/home/joe"`,
	} {
		err := r.Verify([]byte(`{"x":"before ` + secret + ` after"}`))
		if err == nil || !strings.Contains(err.Error(), what) || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: Verify = %v", what, err)
		}
	}
	if err := r.Verify([]byte(`{"x":"/home/joey","sha":"3f786850e387550fdab836ed7e6dc881de23001b"}`)); err != nil {
		t.Errorf("ordinary text: %v", err)
	}
}

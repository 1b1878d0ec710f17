package claude_test

import (
	"strings"
	"testing"

	"drawbridge/shared/agent"
	"drawbridge/shared/fault"
)

func TestPrepare(t *testing.T) {
	w := newWorld(t)
	for _, tc := range []struct {
		name, in, want string
		code           fault.Code
	}{
		{"plain", "do it", "do it", ""},
		{"white space around", "\n  do it \t\n\n", "do it", ""},
		{"what JavaScript trims", "do it\u00a0\ufeff", "do it", ""},
		{"tabs", "a\tb\n\tc", "a    b\n    c", ""},
		{"a path in the middle", "look at /srv", "look at /srv", ""},
		{"a hash", "# heading", "# heading", ""},
		{"a file at its end", "look at @wor", "look at @wor please", ""},
		{"a file in the middle", "look at @wor now", "look at @wor now", ""},
		{"composed", "日本語 e\u0301 \u2126 \u1100\u1161 q\u0307\u0323", "日本語 \u00e9 \u03a9 \uac00 q\u0323\u0307", ""},
		{"pictures", "👍🏽 👨‍👩‍👧 ❤️ 1️⃣ 🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", "👍🏽 👨‍👩‍👧 ❤️ 1️⃣ 🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", ""},
		{"joiners in words", "می\u200cخواهم क्\u200dष", "می\u200cخواهم क्\u200dष", ""},
		{"nothing to be seen", "\ufeffa\u200bb\u00adc\u2060d\u034fe\ufe00f\u3164g\U000e0041h\u200di\u200c", "abcdefghi", ""},
		{"marks of direction", "a\u200eb\u202ec\u2066d\u061c", "abcd", ""},
		{"separators", "a\u2028b\u2029c", "a\nb\nc", ""},
		{"a command behind something unseen", "\u200b/status", "", fault.NativeSlashCommand},
		{"no character", "a\ufffe", "", fault.InvalidArguments},
		{"blank", " \n\t", "", fault.InvalidArguments},
		{"a command", "/status", "", fault.NativeSlashCommand},
		{"a command behind blanks", " \n /status x", "", fault.NativeSlashCommand},
		{"a shell line", " !ls", "", fault.NativeSlashCommand},
		{"an escape", "a\x1b[201~b", "", fault.InvalidArguments},
		{"a carriage return", "a\rb", "", fault.InvalidArguments},
		{"C1", "a\u009bb", "", fault.InvalidArguments},
		{"not UTF-8", "a\xff", "", fault.InvalidArguments},
		{"too long", strings.Repeat("x", 32769), "", fault.InvalidArguments},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := w.adapter.Prepare(tc.in)
			if fault.CodeOf(err) != tc.code {
				t.Fatalf("%v, want %q", err, tc.code)
			}
			if err == nil && (got.Typed != tc.want || got.Expected != tc.want || got.RequestHash == "" || !got.LineFeeds) {
				t.Errorf("%+v, want %q", got, tc.want)
			}
		})
	}
}

func TestLanded(t *testing.T) {
	w := newWorld(t)
	long := strings.Repeat("0123456789", 30)
	for _, tc := range []struct {
		name, text string
		shown      agent.Composer
		want       bool
	}{
		{"plain", "do it", agent.Composer{Draft: "do it"}, true},
		{"two lines", "do\nit", agent.Composer{Draft: "do\nit"}, true},
		{"wrapped at a blank", "do the work", agent.Composer{Draft: "do the\nwork"}, true},
		{"wrapped in a word", long, agent.Composer{Draft: long[:118] + "\n" + long[118:236] + "\n" + long[236:]}, true},
		{"another text", "do it", agent.Composer{Draft: "do its"}, false},
		{"an added line", "do it", agent.Composer{Draft: "do it\n"}, false},
		{"a line that was swallowed", "do\nit", agent.Composer{Draft: "do it"}, false},
		{"empty", "do it", agent.Composer{Empty: true}, false},
		{"mark with as many lines", "a\nb\nc\nd\ne", agent.Composer{Draft: "[Pasted text #1 +4 lines]", Placeholder: "[Pasted text #1 +4 lines]"}, true},
		{"mark with more lines", "a\nb\nc\nd\ne", agent.Composer{Draft: "[Pasted text #1 +5 lines]", Placeholder: "[Pasted text #1 +5 lines]"}, false},
		{"mark of one line", long + long + long, agent.Composer{Draft: "[Pasted text #12]", Placeholder: "[Pasted text #12]"}, true},
		{"mark of one line for five", "a\nb\nc\nd\ne", agent.Composer{Draft: "[Pasted text #1]", Placeholder: "[Pasted text #1]"}, false},
		{"another mark", "a\nb\nc\nd\ne", agent.Composer{Draft: "[Image #1 +4 lines]", Placeholder: "[Image #1 +4 lines]"}, false},
		{"a blank that appears behind a picture", "❤️ ok 1️⃣x", agent.Composer{Draft: "❤️  ok 1️⃣ x"}, true},
		{"a request that looks like a mark", "[Pasted text #1]", agent.Composer{Draft: "[Pasted text #1]"}, true},
		{"the end of a longer draft", "a\nb\nc\nd\ne\nf", agent.Composer{Draft: "c\nd\ne\nf", Scrolled: true}, true},
		{"too little of it", "a\nb\nc\nd\ne\nf", agent.Composer{Draft: "e\nf", Scrolled: true}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.shown.Seen = true
			if got := w.adapter.Landed(tc.shown, w.prepare(tc.text)); got != tc.want {
				t.Errorf("Landed %v, want %v", got, tc.want)
			}
		})
	}
	if w.adapter.Landed(agent.Composer{Draft: "do it"}, w.prepare("do it")) {
		t.Error("landed in a composer that was not seen")
	}
}

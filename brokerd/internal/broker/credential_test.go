package broker_test

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"drawbridge/brokerd/internal/broker"
	"drawbridge/brokerd/internal/upstream"
	"drawbridge/shared/fault"
	"drawbridge/shared/redact"
	"drawbridge/shared/testkit"
)

const (
	key   = "test-CANARY-0123456789"
	token = "test-TOKEN-0123456789"
)

func TestMain(m *testing.M) { testkit.Leak(m) }

func write(t testing.TB, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "auth.json")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func jwt(payload string) string {
	part := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	return part(`{"alg":"RS256"}`) + "." + part(payload) + "." + part("signature")
}

func TestCredential_Content(t *testing.T) {
	expiring := jwt(`{"exp":1900000000.5,"sub":"x"}`)
	for name, tc := range map[string]struct {
		content, kind, secret, account string
		expires                        int64
	}{
		"key":             {`{"OPENAI_API_KEY":"` + key + `"}`, upstream.APIKey, key, "", 0},
		"key wins":        {`{"tokens":{"access_token":"` + token + `"},"OPENAI_API_KEY":"` + key + `"}`, upstream.APIKey, key, "", 0},
		"null key":        {`{"OPENAI_API_KEY":null,"tokens":{"access_token":"` + token + `","account_id":"acc"}}`, upstream.AccessToken, token, "acc", 0},
		"empty key":       {`{"OPENAI_API_KEY":"","tokens":{"access_token":"` + token + `","account_id":null}}`, upstream.AccessToken, token, "", 0},
		"a real file":     {`{"OPENAI_API_KEY":null,"tokens":{"id_token":"a","access_token":"` + expiring + `","refresh_token":"c","account_id":"d"},"last_refresh":"2026"}`, upstream.AccessToken, expiring, "d", 1900000000},
		"no number":       {`{"tokens":{"access_token":"` + jwt(`{"exp":"1"}`) + `"}}`, upstream.AccessToken, jwt(`{"exp":"1"}`), "", 0},
		"past":            {`{"tokens":{"access_token":"` + jwt(`{"exp":-5}`) + `"}}`, upstream.AccessToken, jwt(`{"exp":-5}`), "", 1},
		"three dots only": {`{"tokens":{"access_token":"aaaaaaaaaaa.bbb.ccccccccc"}}`, upstream.AccessToken, "aaaaaaaaaaa.bbb.ccccccccc", "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			kind, account, expires, same, err := broker.ReadCredential(write(t, tc.content), tc.secret)
			if err != nil || kind != tc.kind || account != tc.account || expires != tc.expires || !same {
				t.Errorf("got %q, %q, %d, the secret %t, %v", kind, account, expires, same, err)
			}
		})
	}
}

// Proves broker 18.24: each file that is not what it must be has its code, and no
// message says anything of the content.
func TestCredential_Refused(t *testing.T) {
	good := `{"OPENAI_API_KEY":"` + key + `"}`
	for name, tc := range map[string]struct {
		make func(t *testing.T) string
		code fault.Code
	}{
		"symlink": {func(t *testing.T) string {
			path := write(t, good)
			return path + linked(t, path)
		}, fault.CredentialPermissions},
		"fifo": {func(t *testing.T) string {
			path := filepath.Join(t.TempDir(), "f")
			if err := unix.Mkfifo(path, 0o600); err != nil {
				t.Fatal(err)
			}
			return path
		}, fault.CredentialPermissions},
		"directory": {func(t *testing.T) string { return t.TempDir() }, fault.CredentialPermissions},
		"device":    {func(*testing.T) string { return "/dev/zero" }, fault.CredentialPermissions},
		"socket": {func(t *testing.T) string {
			path := filepath.Join(t.TempDir(), "s")
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { unix.Close(fd) })
			if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
				t.Fatal(err)
			}
			return path
		}, fault.CredentialPermissions},
		"group readable":  {mode(good, 0o640), fault.CredentialPermissions},
		"world writable":  {mode(good, 0o602), fault.CredentialPermissions},
		"foreign owner":   {foreign(good), fault.CredentialPermissions},
		"absent":          {func(t *testing.T) string { return filepath.Join(t.TempDir(), "none") }, fault.CredentialUnavailable},
		"empty":           {text(""), fault.CredentialUnavailable},
		"too large":       {text(good + strings.Repeat(" ", 256<<10)), fault.CredentialUnavailable},
		"no JSON":         {text(key), fault.CredentialUnavailable},
		"no object":       {text(`["` + key + `"]`), fault.CredentialUnavailable},
		"twice":           {text(`{"OPENAI_API_KEY":"` + key + `","OPENAI_API_KEY":"` + key + `x"}`), fault.CredentialUnavailable},
		"two documents":   {text(good + good), fault.CredentialUnavailable},
		"no secret":       {text(`{"id_token":"` + key + `"}`), fault.CredentialUnavailable},
		"other case":      {text(`{"openai_api_key":"` + key + `"}`), fault.CredentialUnavailable},
		"number":          {text(`{"OPENAI_API_KEY":1234567890123456789}`), fault.CredentialUnavailable},
		"tokens a list":   {text(`{"tokens":["` + key + `"]}`), fault.CredentialUnavailable},
		"short":           {text(`{"OPENAI_API_KEY":"CANARY-4567890a"}`), fault.CredentialUnavailable},
		"long":            {text(`{"OPENAI_API_KEY":"` + strings.Repeat("CANARY", 3000) + `"}`), fault.CredentialUnavailable},
		"space":           {text(`{"OPENAI_API_KEY":"CANARY 0123456789"}`), fault.CredentialUnavailable},
		"line end":        {text(`{"OPENAI_API_KEY":"CANARY-0123456789\r\nx: y"}`), fault.CredentialUnavailable},
		"no ASCII":        {text(`{"OPENAI_API_KEY":"CANARY-0123456789é"}`), fault.CredentialUnavailable},
		"short key first": {text(`{"OPENAI_API_KEY":"CANARY","tokens":{"access_token":"` + token + `"}}`), fault.CredentialUnavailable},
		"account":         {text(`{"tokens":{"access_token":"` + token + `","account_id":"CANARY\n"}}`), fault.CredentialUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			path := tc.make(t)
			_, _, _, _, err := broker.ReadCredential(path, "")
			if !fault.Is(err, tc.code) {
				t.Fatalf("got %v, want %s", err, tc.code)
			}
			f, _ := fault.As(err)
			if said := fmt.Sprintf("%s %s %v", f.Message, f.Hint, f.Details); strings.Contains(said, "CANARY") || strings.Contains(said, path) {
				t.Errorf("the message says too much: %s", said)
			}
		})
	}
}

func text(content string) func(*testing.T) string {
	return func(t *testing.T) string { return write(t, content) }
}

func mode(content string, m os.FileMode) func(*testing.T) string {
	return func(t *testing.T) string {
		path := write(t, content)
		if err := os.Chmod(path, m); err != nil {
			t.Fatal(err)
		}
		return path
	}
}

// foreign is a file of another user. Only root can make one; for others every file
// of root is readable by rule, so the rule cannot be met from there.
func foreign(content string) func(*testing.T) string {
	return func(t *testing.T) string {
		if os.Geteuid() != 0 {
			t.Skip("a file of another user is made by root only")
		}
		path := write(t, content)
		if err := os.Chown(path, 4242, 4242); err != nil {
			t.Fatal(err)
		}
		return path
	}
}

func linked(t *testing.T, path string) (suffix string) {
	t.Helper()
	if err := os.Symlink(path, path+".link"); err != nil {
		t.Fatal(err)
	}
	return ".link"
}

// Proves broker 18.25: a token that is over, or ends within the minute, is refused
// when a grant is to begin.
func TestVault_Expired(t *testing.T) {
	now := time.Unix(1_900_000_000, 0)
	for name, tc := range map[string]struct {
		end  int64
		code fault.Code
	}{
		"past":      {now.Unix() - 1, fault.CredentialExpired},
		"now":       {now.Unix(), fault.CredentialExpired},
		"in 60 s":   {now.Unix() + 60, fault.CredentialExpired},
		"in 61 s":   {now.Unix() + 61, ""},
		"long past": {-1, fault.CredentialExpired},
	} {
		t.Run(name, func(t *testing.T) {
			v := broker.NewVault(func() time.Time { return now }, nil)
			path := write(t, `{"tokens":{"access_token":"`+jwt(fmt.Sprintf(`{"exp":%d}`, tc.end))+`"}}`)
			if _, err := v.Open(path, "g"); fault.CodeOf(err) != tc.code {
				t.Errorf("got %v, want %q", err, tc.code)
			}
			if tc.code != "" && v.Bytes(path) != nil {
				t.Error("the vault keeps it")
			}
		})
	}
}

// The memory of a secret is overwritten when the last grant that uses it ends, and
// the log forgets it.
func TestVault_Wiped(t *testing.T) {
	r := redact.New(redact.Options{})
	v := broker.NewVault(time.Now, r)
	path := write(t, `{"OPENAI_API_KEY":"`+key+`"}`)
	for _, grant := range []string{"a", "b"} {
		if _, err := v.Open(path, grant); err != nil {
			t.Fatal(err)
		}
	}
	memory := v.Bytes(path)
	if got := r.Text("say " + key); strings.Contains(got, key) {
		t.Errorf("the log would show it: %s", got)
	}
	v.Close(path, "a")
	if _, _, _, err := v.Get(path, "a"); err == nil {
		t.Error("an ended grant gets the credential")
	}
	c, _, _, err := v.Get(path, "b")
	if err != nil || c.Secret.Reveal() != key {
		t.Fatalf("the other grant: %v", err)
	}
	v.Close(path, "b")
	if strings.Trim(string(memory), "\x00") != "" || v.Bytes(path) != nil {
		t.Errorf("memory is %q", memory)
	}
	if got := r.Text("say " + key); !strings.Contains(got, key) {
		t.Error("the log still hides it")
	}
}

// Two files with one secret: the log hides it until both are closed.
func TestVault_SameSecret(t *testing.T) {
	r := redact.New(redact.Options{})
	v := broker.NewVault(time.Now, r)
	one, two := write(t, `{"OPENAI_API_KEY":"`+key+`"}`), write(t, `{"OPENAI_API_KEY": "`+key+`"}`)
	for _, path := range []string{one, two} {
		if _, err := v.Open(path, "grant of "+path); err != nil {
			t.Fatal(err)
		}
	}
	v.Close(one, "grant of "+one)
	if got := r.Text("say " + key); strings.Contains(got, key) {
		t.Errorf("the log would show it: %s", got)
	}
	if err := os.WriteFile(two, []byte(`{"OPENAI_API_KEY":"`+key+`-2"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, _, _, err := v.Get(two, "grant of "+two); err != nil || c.Secret.Reveal() != key+"-2" {
		t.Fatalf("read again: %v", err)
	}
	if got := r.Text("say " + key + "-2"); strings.Contains(got, key) {
		t.Errorf("the log would show the new one: %s", got)
	}
	v.Close(two, "grant of "+two)
	if got := r.Text("say " + key); !strings.Contains(got, key) {
		t.Error("the log still hides it")
	}
}

// A file that is read again gives the new secret and overwrites the old one.
func TestVault_ReadAgain(t *testing.T) {
	v := broker.NewVault(time.Now, nil)
	path := write(t, `{"OPENAI_API_KEY":"`+key+`"}`)
	if _, err := v.Open(path, "a"); err != nil {
		t.Fatal(err)
	}
	memory := v.Bytes(path)
	if err := os.Chtimes(path, time.Now(), time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if c, _, changed, err := v.Get(path, "a"); err != nil || changed || c.Secret.Reveal() != key {
		t.Errorf("touched: changed %t, %v", changed, err)
	}
	if err := os.WriteFile(path, []byte(`{"OPENAI_API_KEY":"`+key+`-2"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	c, _, changed, err := v.Get(path, "a")
	if err != nil || !changed || c.Secret.Reveal() != key+"-2" {
		t.Errorf("changed %t, %v", changed, err)
	}
	if strings.Trim(string(memory), "\x00") != "" {
		t.Errorf("old memory is %q", memory)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := v.Get(path, "a"); !fault.Is(err, fault.CredentialUnavailable) {
		t.Errorf("removed: got %v", err)
	}
}

func FuzzCredential(f *testing.F) {
	for _, seed := range []string{
		`{"OPENAI_API_KEY":"` + key + `"}`,
		`{"OPENAI_API_KEY":null,"tokens":{"access_token":"` + jwt(`{"exp":1900000000}`) + `","account_id":"a"}}`,
		`{"tokens":{"access_token":"` + token + `","account_id":"a\u0000b"}}`,
		`{"tokens":{"access_token":"a.b.c"}}`, `{"OPENAI_API_KEY":"\ud800"}`, `[]`, `{`, "\xff", `{"tokens":{"tokens":{"tokens":{}}}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		kind, secret, err := broker.ParseCredential(data)
		if err != nil {
			if code := fault.CodeOf(err); code != fault.CredentialUnavailable {
				t.Errorf("code %s", code)
			}
			return
		}
		if upstream.OriginFor(kind) == "" || len(secret) < 16 || strings.ContainsAny(string(secret), " \r\n\t\x00\x7f") {
			t.Errorf("kind %q, %d bytes", kind, len(secret))
		}
	})
}

package main

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"drawbridge/stationd/internal/evidence"
)

// fields is a spec with members replaced; nil removes one.
func (w *world) fields(more map[string]any, args ...string) string {
	w.t.Helper()
	path := w.spec(args...)
	data, err := os.ReadFile(path)
	if err != nil {
		w.t.Fatal(err)
	}
	var s map[string]any
	if err := json.Unmarshal(data, &s); err != nil {
		w.t.Fatal(err)
	}
	for name, value := range more {
		if s[name] = value; value == nil {
			delete(s, name)
		}
	}
	if data, err = json.Marshal(s); err == nil {
		err = os.WriteFile(path, data, 0o600)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return path
}

// ask sends one request with the target as it is written, and headers as "Name: value".
func (w *world) ask(v visitor, url, target string, headers ...string) (int, http.Header, string) {
	w.t.Helper()
	r, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	r.Close, r.URL.Opaque = true, target
	r.Header.Set("Authorization", "Bearer "+v.secret)
	r.Header.Set("Drawbridge-Ticket", v.ticket)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if r.Header.Set(name, value); name == "Host" {
			r.Host = value
		}
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(data)
}

// send makes a request that is answered with 200, or with 404.
func (w *world) send(v visitor, method, url, body string) string {
	w.t.Helper()
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	r.Close = true
	r.Header.Set("Authorization", "Bearer "+v.secret)
	r.Header.Set("Drawbridge-Ticket", v.ticket)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil || (resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusNotFound) {
		w.t.Fatalf("%s %s: %d %s %v", method, url, resp.StatusCode, data, err)
	}
	return string(data)
}

// stream opens an event stream that is read to its end elsewhere.
func (w *world) stream(v visitor, url string) (ended <-chan string) {
	w.t.Helper()
	r, err := http.NewRequest(http.MethodGet, url+"/events?every=20ms", nil)
	if err != nil {
		w.t.Fatal(err)
	}
	r.Close = true
	r.Header.Set("Authorization", "Bearer "+v.secret)
	r.Header.Set("Drawbridge-Ticket", v.ticket)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	in := bufio.NewReader(resp.Body)
	if _, err := in.ReadString('\n'); err != nil || resp.StatusCode != http.StatusOK {
		w.t.Fatalf("a stream: %d, %v", resp.StatusCode, err)
	}
	out := make(chan string, 1)
	go func() {
		defer resp.Body.Close()
		data, _ := io.ReadAll(in)
		out <- string(data)
	}()
	return out
}

// document is the evidence of a station's attempt.
func (w *world) document(id string, attempt int) (f evidence.Facts, text string) {
	w.t.Helper()
	text = w.must("evidence", "show", id, "-attempt", strconv.Itoa(attempt))
	if err := json.Unmarshal([]byte(text), &f); err != nil {
		w.t.Fatalf("%v: %s", err, text)
	}
	return f, text
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	all, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

package main

import (
	"crypto/subtle"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// exits takes the status that POST /exit asks for.
var exits = make(chan int, 1)

// routes is everything the harness answers.
func routes() *http.ServeMux {
	m := http.NewServeMux()
	m.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { reply(w, map[string]any{"ok": true}) })
	m.HandleFunc("GET /headers", headers)
	m.HandleFunc("POST /headers", headers)
	m.HandleFunc("POST /echo", echo)
	m.HandleFunc("GET /events", events)
	m.HandleFunc("GET /status", status)
	m.HandleFunc("GET /redirect", redirect)
	m.HandleFunc("GET /cookies", cookies)
	m.HandleFunc("GET /interim", interim)
	m.HandleFunc("GET /slow", slow)
	m.HandleFunc("GET /stall", stall)
	m.HandleFunc("GET /cut", cut)
	m.HandleFunc("GET /raw", raw)
	m.HandleFunc("POST /exit", exit)
	m.HandleFunc("POST /say", say)

	m.HandleFunc("GET /environment", environment)
	m.HandleFunc("GET /process", process)
	m.HandleFunc("GET /list", list)
	m.HandleFunc("GET /read", read)
	m.HandleFunc("POST /write", write)
	m.HandleFunc("GET /dial", dial)
	m.HandleFunc("GET /resolve", resolve)
	m.HandleFunc("GET /fetch", fetch)
	m.HandleFunc("GET /drain", drain)
	m.HandleFunc("POST /signal", signalTo)
	m.HandleFunc("POST /trace", trace)
	return m
}

// guard asks for the credential of -guard.
func guard(o options, h http.Handler) http.Handler {
	if o.auth == "" {
		return h
	}
	secret := os.Getenv(o.authEnv)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kind, arg, _ := strings.Cut(o.auth, ":")
		var got string
		switch kind {
		case "bearer":
			got = strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		case "basic":
			user, password, _ := r.BasicAuth()
			if user == arg {
				got = password
			}
		case "header":
			got = r.Header.Get(arg)
		}
		if secret == "" || subtle.ConstantTimeCompare([]byte(got), []byte(secret)) != 1 {
			w.Header().Set("WWW-Authenticate", "Basic")
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// headers tells what arrived.
func headers(w http.ResponseWriter, r *http.Request) {
	reply(w, map[string]any{"method": r.Method, "target": r.RequestURI, "host": r.Host, "header": r.Header})
}

// echo gives the body back.
func echo(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
	_, _ = io.Copy(w, r.Body)
}

// events is a stream: count events (0: without end) every so long, with ids after
// Last-Event-ID, size bytes of data, and line ends lf, crlf or cr. With half the
// last event is not finished and the stream stays open. With stamp the data is the
// time of writing, in Unix nanoseconds.
func events(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	count, every, size := number(q.Get("count"), 0), pause(q.Get("every")), number(q.Get("size"), 1)
	ends := map[string]string{"crlf": "\r\n", "cr": "\r"}
	end, ok := ends[q.Get("end")]
	if !ok {
		end = "\n"
	}
	first := number(r.Header.Get("Last-Event-ID"), 0) + 1
	w.Header().Set("Content-Type", "text/event-stream")
	flush := http.NewResponseController(w).Flush
	_ = flush()
	for i := 0; count == 0 || i < count; i++ {
		data := strings.Repeat("x", size)
		if q.Get("stamp") != "" {
			data = strconv.FormatInt(time.Now().UnixNano(), 10)
		}
		event := fmt.Sprintf("id: %d%[2]sdata: %[3]s%[2]s%[2]s", first+i, end, data)
		if q.Get("half") != "" && i == count-1 {
			event = event[:len(event)/2]
		}
		if _, err := io.WriteString(w, event); err != nil || flush() != nil {
			return
		}
		if !wait(r, every) {
			return
		}
	}
	if q.Get("half") != "" || q.Get("hold") != "" {
		<-r.Context().Done()
	}
}

// status answers with ?code=.
func status(w http.ResponseWriter, r *http.Request) {
	w.WriteHeader(number(r.URL.Query().Get("code"), http.StatusOK))
}

// redirect leads to ?to=, as it is written.
func redirect(w http.ResponseWriter, r *http.Request) {
	w.Header()["Location"] = []string{r.URL.Query().Get("to")}
	w.WriteHeader(http.StatusFound)
}

// cookies sets everything that would give a page power over its origin.
func cookies(w http.ResponseWriter, _ *http.Request) {
	for name, value := range map[string]string{
		"Set-Cookie": "session=1; Path=/", "Clear-Site-Data": `"*"`, "Service-Worker-Allowed": "/", "Alt-Svc": `h3=":1"`,
		"Strict-Transport-Security": "max-age=1", "Access-Control-Allow-Origin": "*", "Access-Control-Allow-Credentials": "true",
		"WWW-Authenticate": "Basic", "Server": "testharness", "Content-Type": "text/html",
	} {
		w.Header().Set(name, value)
	}
	_, _ = io.WriteString(w, "<script>1</script>")
}

// interim answers with 103 first and with trailers last.
func interim(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Link", "</style.css>")
	w.Header().Set("Set-Cookie", "interim=1")
	w.WriteHeader(http.StatusEarlyHints)
	w.Header().Del("Link")
	w.Header().Set("Trailer", "X-Trailer")
	_, _ = io.WriteString(w, "body")
	w.Header().Set("X-Trailer", "1")
}

// slow answers after ?for=.
func slow(w http.ResponseWriter, r *http.Request) {
	if wait(r, pause(r.URL.Query().Get("for"))) {
		reply(w, map[string]any{"ok": true})
	}
}

// stall begins an answer and leaves it there.
func stall(w http.ResponseWriter, r *http.Request) {
	_, _ = io.WriteString(w, "beginning")
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
}

// cut says more than it sends.
func cut(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", "100")
	_, _ = io.WriteString(w, "short")
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

// raw answers with the bytes of ?text= and closes.
func raw(w http.ResponseWriter, r *http.Request) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer c.Close()
	_, _ = io.WriteString(c, r.URL.Query().Get("text"))
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.CloseWrite()
	}
}

// exit ends the harness with ?code=, once the answer is away.
func exit(w http.ResponseWriter, r *http.Request) {
	code := number(r.URL.Query().Get("code"), 0)
	reply(w, map[string]any{"exit": code})
	_ = http.NewResponseController(w).Flush()
	select {
	case exits <- code:
	default:
	}
}

// wait waits unless the client leaves.
func wait(r *http.Request, d time.Duration) bool {
	select {
	case <-r.Context().Done():
		return false
	case <-time.After(d):
		return true
	}
}

func number(text string, otherwise int) int {
	if n, err := strconv.Atoi(text); err == nil {
		return n
	}
	return otherwise
}

func pause(text string) time.Duration {
	d, _ := time.ParseDuration(text)
	return d
}

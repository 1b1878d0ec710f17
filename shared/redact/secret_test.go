package redact_test

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	jsonv2 "github.com/go-json-experiment/json"

	"drawbridge/shared/redact"
)

func TestSecret(t *testing.T) {
	const value = "s3cr3t-canary"
	s := redact.NewSecret(value)
	holder := struct {
		Name string
		S    redact.Secret
		P    *redact.Secret
		M    map[redact.Secret]int
	}{"n", s, &s, map[redact.Secret]int{s: 1}}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("m", "s", s, "p", &s, "h", holder)
	slog.New(slog.NewTextHandler(&log, nil)).Info("m", "s", s, "p", &s, "h", holder)
	v1, err1 := json.Marshal(holder)
	v2, err2 := jsonv2.Marshal(holder)
	x, err3 := xml.Marshal(s)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"%v": fmt.Sprintf("%v", s), "%+v": fmt.Sprintf("%+v", holder), "%#v": fmt.Sprintf("%#v", holder), "%s": fmt.Sprintf("%s", s),
		"%q": fmt.Sprintf("%q", s), "%x": fmt.Sprintf("%x", s), "%d": fmt.Sprintf("%d", s), "pointer": fmt.Sprintf("%+v %#v", &s, &s),
		"Sprint": fmt.Sprint(s, &s), "error": fmt.Errorf("x: %v", s).Error(), "slog": log.String(),
		"json": string(v1), "json v2": string(v2), "xml": string(x),
	} {
		if strings.Contains(text, value) || strings.Contains(text, fmt.Sprintf("%x", value)) || !strings.Contains(text, redact.Hidden) {
			t.Errorf("%s shows %q", name, text)
		}
	}
	if s.Reveal() != value || s.IsZero() || !(redact.Secret{}).IsZero() {
		t.Error("the value is lost")
	}
}

package catalog

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"regexp"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"drawbridge/shared/strictjson"
)

// The reviewed input schemas, published as they are.
//
//go:embed schema/*.json
var schemaFiles embed.FS

// ecmaSpace is what \s means in ECMAScript, as the inside of a Go class.
const ecmaSpace = `\t\n\v\f\r \x{a0}\x{feff}\x{2028}\x{2029}\p{Zs}`

var unicodeEscape = regexp.MustCompile(`\\u([0-9A-Fa-f]{4})`)

// schema is one compiled schema.
type schema struct {
	resolved *jsonschema.Resolved
	form     string // which members go together, in words
}

// loadSchema compiles the schema of a tool and gives the bytes to publish.
func loadSchema(tool, form string) (*schema, []byte, error) {
	data, err := schemaFiles.ReadFile("schema/" + tool + ".json")
	if err != nil {
		return nil, nil, err
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, data); err != nil {
		return nil, nil, err
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, nil, err
	}
	translate(&s)
	resolved, err := s.Resolve(nil)
	if err != nil {
		return nil, nil, err
	}
	return &schema{resolved, form}, compact.Bytes(), nil
}

// translate rewrites the patterns of s, which are ECMAScript, for Go.
func translate(s *jsonschema.Schema) {
	if s == nil {
		return
	}
	if s.Pattern != "" {
		s.Pattern = translatePattern(s.Pattern)
	}
	for _, sub := range s.Properties {
		translate(sub)
	}
	translate(s.Items)
	translate(s.Not)
	for _, list := range [][]*jsonschema.Schema{s.AnyOf, s.OneOf, s.AllOf} {
		for _, sub := range list {
			translate(sub)
		}
	}
}

// translatePattern covers what the reviewed patterns use: \uXXXX, which Go
// writes \x{XXXX}, and \S outside a class, which in ECMAScript knows more spaces.
func translatePattern(p string) string {
	p = unicodeEscape.ReplaceAllString(p, `\x{$1}`)
	return strings.ReplaceAll(p, `\S`, `[^`+ecmaSpace+`]`)
}

// validate checks one document. Numbers are floats here: a number beyond their
// range does not fit any argument.
func (s *schema) validate(args []byte) error {
	if _, err := strictjson.Parse(args, strictjson.Limits{MaxBytes: maxArguments}); err != nil {
		return err
	}
	var v any
	if err := json.Unmarshal(args, &v); err != nil {
		return errors.New("a number is out of range")
	}
	if _, ok := v.(map[string]any); !ok {
		return errors.New("arguments must be an object")
	}
	if err := s.resolved.Validate(v); err != nil {
		text := strings.TrimPrefix(err.Error(), "validating root: ")
		if s.form != "" && combination.MatchString(text) {
			text = s.form
		}
		return errors.New(text)
	}
	return nil
}

// combination matches the validator's word about members that exclude or need
// each other: it names only parts of the schema that have no name.
var combination = regexp.MustCompile(`^(?:anyOf|oneOf|not): `)

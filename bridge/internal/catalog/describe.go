package catalog

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// A Sketch is one tool as a command line needs it: what it is called and which
// arguments it knows. It costs no compiled schema.
type Sketch struct {
	Name       string // without Prefix
	Title      string
	Properties []Property // in the schema's order
}

// Property is one argument of a tool.
type Property struct {
	Name  string
	Type  string   // string, number, boolean, array
	Enum  []string // the texts that it may be
	About string
}

// Sketches lists all tools, sorted by name.
func Sketches() ([]Sketch, error) {
	out := make([]Sketch, 0, len(tools))
	for _, t := range tools {
		data, err := schemaFiles.ReadFile("schema/" + t.name + ".json")
		if err != nil {
			return nil, fmt.Errorf("read the schema of %s: %w", t.name, err)
		}
		props, err := properties(data)
		if err != nil {
			return nil, fmt.Errorf("read the schema of %s: %w", t.name, err)
		}
		out = append(out, Sketch{t.name, t.title, props})
	}
	slices.SortFunc(out, func(a, b Sketch) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// properties reads the members of a schema's object in their order.
func properties(data []byte) ([]Property, error) {
	var doc struct {
		Properties json.RawMessage `json:"properties"`
	}
	if err := json.Unmarshal(data, &doc); err != nil || len(doc.Properties) == 0 {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(doc.Properties))
	if _, err := dec.Token(); err != nil {
		return nil, err
	}
	var out []Property
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return nil, err
		}
		var p struct {
			Type        string   `json:"type"`
			Enum        []string `json:"enum"`
			Description string   `json:"description"`
		}
		if err := dec.Decode(&p); err != nil {
			return nil, err
		}
		out = append(out, Property{fmt.Sprint(name), p.Type, p.Enum, p.Description})
	}
	return out, nil
}

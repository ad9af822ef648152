//go:build real

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	"tidemill.dev/broker/brokertest/realservers"
)

// violation is a fault of accessibility that axe-core found.
type violation struct {
	ID, Help string
	Nodes    []struct {
		HTML   string
		Target []any
	}
}

// String names the rule and the first elements that break it.
func (v violation) String() string {
	var where []string
	for i, n := range v.Nodes {
		if i == 3 {
			where = append(where, "…")
			break
		}
		text, _ := json.Marshal(n.Target) // targets are texts
		where = append(where, string(text)+" "+short(n.HTML))
	}
	return v.ID + ": " + v.Help + ": " + strings.Join(where, "; ")
}

// violations runs axe-core on the page.
func (p *page) violations() (all []violation) {
	p.Helper()
	modules, err := realservers.BrowserModules(p.Context())
	p.must(err)
	source, err := os.ReadFile(filepath.Join(modules, "axe-core", "axe.min.js"))
	p.must(err)
	eval[bool](p, "if (!window.axe) {"+string(source)+"}; true")
	text := eval[string](p, `axe.run(document, {resultTypes: ["violations"]}).then((r) => JSON.stringify(r.violations.map((v) => ({ID: v.id, Help: v.help,
		Nodes: v.nodes.map((n) => ({HTML: n.html, Target: n.target}))}))))`)
	p.must(json.Unmarshal([]byte(text), &all))
	return all
}

// Package runbooks embeds the runbooks of the alerts, so that the gateway shows them to the person
// who is called.
package runbooks

import "embed"

// Files returns the runbooks: a Markdown file for each.
func Files() embed.FS { return files }

//go:embed *.md
var files embed.FS

// Package outcomes joins the answers of a scorer with their labels, and writes each pair once, as an
// outcome. See DESIGN.md.
package outcomes

// Package lease lets one of several processes do a task, and another take it over when that process dies.
package lease

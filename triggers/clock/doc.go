// Package clock turns schedules into ticks, each exactly once, whoever of
// several keepers happens to run. See DESIGN.md.
package clock

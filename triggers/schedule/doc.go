// Package schedule turns schedules into ticks. Each tick is sent exactly once,
// whichever of several controllers is active. See DESIGN.md.
package schedule

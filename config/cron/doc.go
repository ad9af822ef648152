// Package cron reads cron expressions and says when they fire next. It is pure:
// the same expression, moment and time zone give the same answer for ever.
//
// An expression has five fields, or six with seconds first:
//
//	┌ second 0-59 (0 where there are five fields)
//	│ ┌ minute 0-59
//	│ │ ┌ hour 0-23
//	│ │ │ ┌ day of month 1-31, or L for the last
//	│ │ │ │ ┌ month 1-12 or JAN-DEC
//	│ │ │ │ │ ┌ day of week 0-7 or SUN-SAT; 0 and 7 are Sunday
//	0 0 3 * * MON-FRI
//
// A field is a list of values, ranges (a-b) and steps (*/n, a-b/n; a/n goes on
// to the field's end). A ? stands for a * in the two fields of days. Instead of
// fields there is @yearly, @annually, @monthly, @weekly, @daily, @midnight,
// @hourly and @every followed by a duration.
//
// As in Vixie cron, where both fields of days are restricted, a day needs to
// match one of them; where one begins with a *, a day must match both.
//
// When clocks change, it matters whether the field of hours begins with a *:
//
//   - If it does, the expression goes by what a clock on the wall shows, as often
//     as it shows it. An hour that comes twice has its firings twice, one that is
//     left out has none, and so "0 * * * *" fires every real hour.
//   - If it does not, each time of day is meant once. One that comes twice counts
//     when it comes first. Those that are left out count together, once, at the
//     moment of the jump: "30 2 * * *" fires every day of the year.
//
// @every 90s fires on a grid that begins with the year 1970 in UTC, so that it
// does not depend on when a process starts, and clocks that change do not
// concern it.
package cron

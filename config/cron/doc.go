// Package cron parses cron expressions and computes when they fire next. It reads no clock: the
// same expression, moment and time zone always give the same answer.
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
// A field is a list of values, ranges (a-b) and steps (*/n, a-b/n; a/n runs to the field's end). A
// ? means a * in the two fields of days. Instead of fields an expression can be @yearly, @annually,
// @monthly, @weekly, @daily, @midnight, @hourly, or @every followed by a duration.
//
// As in Vixie cron, if both fields of days are restricted, a day must match one of them. If one
// of them begins with a *, a day must match both.
//
// When clocks change, it matters whether the field of hours begins with a *:
//
//   - If it does, the expression follows the wall clock. In an hour that comes twice it fires twice,
//     and in a skipped hour not at all. So "0 * * * *" fires every real hour.
//   - Otherwise the expression fires once for each time of day. If a time comes twice, the first
//     one counts. Skipped times fire together, once, at the moment of the jump: "30 2 * * *" fires
//     on every day of the year.
//
// @every 90s fires at whole multiples of 90 s since 1970 in UTC. So it does not depend on when a
// process starts or when clocks change. concern it.
package cron

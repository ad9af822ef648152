// Package retry waits between attempts: for a fixed time, until a change, or longer after each
// failure. It uses the ordinary timers of package time, so a testing/synctest bubble runs it in
// virtual time.
package retry

// Package triggers turns events into calls of functions. Filter decides which events
// match, and keys finds the keys that an event is about; deliver calls the function in order
// and retries; deadletters keeps the events that could not be delivered. Schedule sends ticks
// by the clock, and commands has the requests of people, such as a pause or a replay.
package triggers

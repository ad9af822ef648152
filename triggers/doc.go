// Package triggers is the wing that turns events into calls of functions. Filter
// decides which events match; deliver calls the function in order and retries;
// deadletters keeps what could not be delivered. Schedule sends ticks by the
// clock, and commands holds what people ask for, such as a pause or a replay.
package triggers

// Package pick takes what a model wants out of events: each input's path is found
// in the JSON as it goes by, once, and nothing else is decoded.
//
// What it picks is what encoding/json would have decoded: of several members of
// one name the last counts, texts are made valid UTF-8, and a document with a
// fault anywhere is refused, also behind what was looked for. A fuzz test holds it
// to that. Beyond it, true and false are 1 and 0 where numbers are wanted, and a
// number is as good as an array of that number alone.
package pick

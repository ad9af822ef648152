// Package features reads a model's inputs from events. It finds each input's path in
// one pass over the JSON and decodes nothing else.
//
// The values are those that encoding/json would decode. Of several members with one name the last
// one counts, texts are made valid UTF-8, and a document with a fault anywhere is refused, even
// after the last wanted value. A fuzz test checks this. In addition, true and false are 1 and 0
// where numbers are wanted, and a single number is accepted as an array of one.
package features

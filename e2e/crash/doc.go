// Package crash stops Tidemill before and after each write, on the way from two events to the ends
// of their runs and to the champion of their model. It starts Tidemill again and checks the result:
// exactly the effects of one run for each event, and no lost data. After an orderly stop it also
// checks that no attempt was repeated.
package crash

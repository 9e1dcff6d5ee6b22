package text

import (
	"errors"
	"fmt"
)

// Sound returns an error of the user's as it is, or another one if it panics when it is asked what it is: so does a nil
// pointer of a type of errors, which a function has returned in the place of nil. What becomes of a transaction, or of
// a message, must not depend on that.
func Sound(err error) (sound error) {
	if err == nil {
		return nil
	}
	defer func() {
		if p := recover(); p != nil {
			// Cause: the function returned a nil pointer as an error, or an error whose methods have a bug.
			// Cure: return nil, and not a variable of a pointer type; fix the methods.
			sound = fmt.Errorf("an error of type %T panicked when it was asked what it is: "+
				"return nil instead of a nil pointer: %v", err, p)
		}
	}()
	_ = err.Error()
	_ = errors.Is(err, errNone)
	_ = SQLState(err)
	return err
}

var errNone = errors.New("")

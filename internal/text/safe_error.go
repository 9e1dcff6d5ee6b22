package text

import (
	"errors"
	"fmt"
)

// SafeError returns a user's error unchanged, or a replacement if its methods panic, for example because a nil pointer
// was returned as an error. Such a panic must not decide the outcome of a transaction or a message.
func SafeError(err error) (safe error) {
	if err == nil {
		return nil
	}
	defer func() {
		if p := recover(); p != nil {
			// Cause: the function returned a nil pointer as an error, or an error whose methods have a bug.
			// Cure: return nil, and not a variable of a pointer type; fix the methods.
			safe = fmt.Errorf("an error of type %T panicked when it was inspected: "+
				"return nil instead of a nil pointer: %v", err, p)
		}
	}()
	_ = err.Error()
	_ = errors.Is(err, errNone)
	_ = SQLState(err)
	return err
}

var errNone = errors.New("")

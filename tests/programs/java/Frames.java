import java.lang.reflect.Method;

/**
 * Allocates in native code below known Java frames. For each place, the native library (frames.c) has a function, and
 * writes down the stack as the JVM reports it.
 *
 * Arguments: the library, its output, calls of each place beforehand (to compile it). Says "ready", a line, "done".
 */
class Frames {
    /** Allocates at a place; only counts if the place is negative. */
    static native long allocate(int place);

    /** Calls `next` from native code. */
    static native long through(Step next, int place);

    interface Step {
        long go(int place) throws Exception;
    }

    static class Direct implements Step {
        public long go(int place) {
            return allocate(place) + 1;
        }
    }

    /** Values that are live across a call, so that frames are large; and arguments on the stack. */
    static class Large implements Step {
        static long many(int a, long b, int c, long d, double e, double f, int g, long h, int i, long j, double k, double l,
                         double m, double n, double o, double p, long q, int place) {
            long r = a * b, s = c * d, t = g * h, u = i * j, v = q * a, w = b + c, x = d + g, y = h + i, z = j + q;
            long found = allocate(place);
            return found + r + s + t + u + v + w + x + y + z + (long) (e + f + k + l + m + n + o + p);
        }

        public long go(int place) {
            return many(1, 2, 3, 4, 5.5, 6.5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, place) + 1;
        }
    }

    static class Recursive implements Step {
        static long recurse(int depth, long sum, int place) {
            return depth == 0 ? allocate(place) : recurse(depth - 1, sum + depth, place) + sum;
        }

        public long go(int place) {
            return recurse(20, 1, place) + 1;
        }
    }

    static class Synchronized implements Step {
        synchronized long held(int place) {
            try {
                return allocate(place) + 1;
            } finally {
                notifyAll();
            }
        }

        public long go(int place) {
            return held(place) + 1;
        }
    }

    static class Callback implements Step {
        final Step next = new Direct();

        public long go(int place) {
            return through(next, place) + 1;
        }
    }

    static class Reflective implements Step {
        final Method method;

        Reflective() throws Exception {
            method = Frames.class.getDeclaredMethod("allocate", int.class);
        }

        public long go(int place) throws Exception {
            return (long) method.invoke(null, place) + 1;
        }
    }

    static class Catching implements Step {
        static long fail(int depth) {
            if (depth == 0) {
                throw new IllegalStateException();
            }
            return fail(depth - 1) + 1;
        }

        public long go(int place) {
            try {
                return fail(5);
            } catch (IllegalStateException expected) {
                return allocate(place) + 1;
            }
        }
    }

    /** Makes deeper calls first, which leave their frames below those of the next call. */
    static class AfterDeeper implements Step {
        static long deep(int depth, long a, long b) {
            return depth == 0 ? allocate(-1) : deep(depth - 1, b, a + depth) + a;
        }

        static long shallow(long a, long b, long c, long d, int place) {
            long e = a + b, f = b + c, g = c + d, h = a + d;
            return allocate(place) + a + b + c + d + e + f + g + h;
        }

        public long go(int place) {
            return deep(12, 3, 4) + shallow(1, 2, 3, 4, place);
        }
    }

    static class Loop implements Step {
        public long go(int place) {
            long sum = 0;
            for (int i = 0; i < 70000; i++) {
                sum += i ^ place;
            }
            return sum + allocate(place);
        }
    }

    static class Threaded implements Runnable {
        final int place;

        Threaded(int place) {
            this.place = place;
        }

        public void run() {
            allocate(place);
        }
    }

    static long run(Step step, int place) throws Exception {
        return step.go(place) + 1;
    }

    public static void main(String[] arguments) throws Exception {
        System.load(arguments[0]);
        open(arguments[1]);
        Step[] steps = {
            new Direct(), new Large(), new Recursive(), new Synchronized(), new Callback(), new Reflective(), new Catching(),
            new AfterDeeper(), new Loop(),
        };
        long sum = 0;
        for (int i = 0; i < Integer.parseInt(arguments[2]); i++) {
            for (Step step : steps) {
                sum += run(step, -1);
            }
        }
        System.out.println("ready");
        System.in.read();
        for (int i = 0; i < 5; i++) {
            for (int place = 0; place < steps.length; place++) {
                sum += run(steps[place], place);
            }
        }
        Thread thread = new Thread(new Threaded(steps.length));
        thread.start();
        thread.join();
        System.out.println(sum == 0 ? "nothing" : "done");
        System.in.read();
    }

    static native void open(String output);
}

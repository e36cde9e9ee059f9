import java.util.ArrayList;
import java.util.List;

/**
 * Grows by arrays in a list that nothing leaves: 1 MB a second.
 *
 * <p>usage: java Grow.java SECONDS; prints a line {@code heap BYTES} each second: the bytes that it holds by then.
 */
public class Grow {
    private static final int STEPS = 100;
    private static final List<byte[]> KEPT = new ArrayList<>();

    /** Adds 10 arrays of 1000 bytes. */
    static long remember() {
        for (int i = 0; i < 10; i++) {
            byte[] entry = new byte[984];
            entry[0] = 1;
            KEPT.add(entry);
        }
        return 10 * 1000;
    }

    public static void main(String[] words) throws InterruptedException {
        long held = 0;
        long until = System.nanoTime();
        for (int step = 0; step < Integer.parseInt(words[0]) * STEPS; step++) {
            held += remember();
            if (step % STEPS == STEPS - 1) {
                System.out.println("heap " + held);
            }
            until += 1_000_000_000L / STEPS;
            long left = until - System.nanoTime();
            if (left > 0) {
                Thread.sleep(left / 1_000_000, (int) (left % 1_000_000));
            }
        }
    }
}
